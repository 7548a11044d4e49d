/* The search runs in a worker, and browsers start none from the disk. On a page that was opened as a file, a hidden frame takes
   its place: the worker's script runs there, and messages go both ways. */
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => setTimeout(() => {
        const message = new MessageEvent("message", { data })
        if (this.onmessage) this.onmessage(message)
        this.dispatchEvent(message)
      })
      const script = this.frame.contentDocument.createElement("script")
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      }
      script.src = new URL(url, document.baseURI)
      this.frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker = FrameWorker
}
