"""Pages that attack their renderer. PORT and FILE stand for a canary server and a canary file."""

PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = "http://127.0.0.1:PORT/canary"

# Each tries to make the browser work for ever or grow without end; all without a script.
BOMBS = {
    "nested elements": "<div>" * 150_000,
    "wide tables": "<table>" + ("<tr>" + "<td><table><tr><td>x" * 12 + "</table>" * 12) * 3000,
    "entity tree": "<svg><defs><g id=a0><circle r=9 /></g>"
    + "".join(f"<g id=a{i}>" + f"<use href='#a{i - 1}'/>" * 12 + "</g>" for i in range(1, 10))
    + "</defs><use href='#a9'/></svg>",
    "filters": "<style>div{filter:blur(90px) drop-shadow(0 0 90px red) blur(99px);width:1300px;height:3000px}</style>"
    + "<div>" * 60,
    "turbulence": "<svg width=1300 height=7000><filter id=f x=0 y=0 width=1 height=1>"
    + "<feTurbulence baseFrequency=.9 numOctaves=99 /><feMorphology radius=99 />" * 30
    + "</filter><rect width=1300 height=7000 filter='url(#f)'/></svg>",
    "frames": "<iframe srcdoc='<iframe srcdoc=\"<p>x</p>\"></iframe>'></iframe>" * 1500,
    "grid": "<div style='display:grid;grid-template:repeat(3000,1px)/repeat(3000,1px)'>"
    + "<i style='grid-area:span 9/span 9'>x</i>" * 4000,
    "variables": "<style>:root{--v0:xxxxxxxxxx;"
    + "".join(f"--v{i}:" + f"var(--v{i - 1})" * 10 + ";" for i in range(1, 9))
    + "}p::before{content:var(--v8)}</style><p>",
    "selectors": "<style>"
    + "".join(f":has(:has(div ~ i:nth-child({i}n+1)) p) b{{color:red}}" for i in range(300))
    + "</style>"
    + "<div><i>x</i><p><b>y</b></p></div>" * 6000,
    "big picture": "<svg width=0 height=0><image id=i width=30000 height=30000 href='"
    + PICTURE
    + "'/></svg>"
    + f"<img src='{PICTURE}' style='width:30000px;height:30000px;filter:blur(40px)'>" * 20,
}

# Each tries to reach what is not its own, or to be somewhere else when the picture is taken.
REACHES = {
    "requests": f"<link rel=stylesheet href='{URL}.css'><link rel=preload as=font href='{URL}.woff'><link rel=preconnect href='http://127.0.0.1:PORT'>"
    f"<link rel=prefetch href='{URL}.p'><link rel=icon href='{URL}.ico'><link rel=dns-prefetch href='//127.0.0.1:PORT'>"
    f"<script src='{URL}.js'></script><img src='{URL}.png' srcset='{URL}2.png 2x'><video src='{URL}.mp4' poster='{URL}.jpg' autoplay></video>"
    f"<audio autoplay src='{URL}.mp3'></audio><object data='{URL}.svg'></object><embed src='{URL}.pdf'><iframe src='{URL}.html'></iframe>"
    f"<div style=\"background:url({URL}.gif)\">x</div><svg><image href='{URL}.i'/><use href='{URL}.u#x'/></svg><input type=image src='{URL}.in'>"
    f"<style>@import '{URL}.imp';@font-face{{font-family:c;src:url({URL}.ttf)}}p{{font-family:c;cursor:url({URL}.cur),auto}}</style><p>text</p>",
    "files": "<iframe src='file://FILE' width=900 height=200></iframe><object data='file://FILE' width=900 height=200></object>"
    "<embed src='file://FILE'><img src='file://FILE'><link rel=stylesheet href='file://FILE'><script src='file://FILE'></script>"
    "<iframe src='view-source:file://FILE'></iframe><iframe src='filesystem:file:///FILE'></iframe><a href='file://FILE'>x</a>",
    "inner pages": "<iframe src='chrome://version'></iframe><iframe src='chrome://gpu' width=800 height=300></iframe><iframe src='about:memory'></iframe>"
    "<iframe src='devtools://devtools/bundled/inspector.html'></iframe><object data='chrome://settings'></object>",
    "meta refresh": f"<meta http-equiv=refresh content='0;url={URL}'><p>text</p>",
    "hidden meta refresh": f"<meta content='0;url={URL}' http-equiv='&#114;efresh'><p>text</p>",
    "meta refresh to nothing": "<meta content='0;url=about:blank' http-equiv='re&#102;resh'><p>text</p>",
    "frame refresh": f"<iframe srcdoc=\"<meta http-equiv='refresh' content='0;url={URL}'>\"></iframe><p>text</p>",
    "base": f"<base href='http://127.0.0.1:PORT/' target=_blank><img src=canary><a href=canary ping='{URL}' autofocus>x</a>",
    "policy": "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'none'; img-src 'none'\"><p>text</p>",
    "report": f"<meta http-equiv=Content-Security-Policy-Report-Only content='default-src none; report-uri {URL}'><img src=x.png><p>text</p>",
    "popups": "<body onload='alert(1);confirm(2);prompt(3);print();window.open(\"about:blank\")'><a href='javascript:alert(1)' autofocus onfocus='alert(2)'>x</a>",
    "loop": "<script>for(;;){}</script><body onload='while(1);'><img src=x onerror='for(;;);'><svg onload='for(;;);'><p>text</p>",
    "service worker": "<script>navigator.serviceWorker.register('data:text/javascript,onfetch=e=>e.respondWith(new Response(0))')</script><p>text</p>",
    "requests by script": f"<script>fetch('{URL}');new WebSocket('ws://127.0.0.1:PORT');navigator.sendBeacon('{URL}');new EventSource('{URL}');"
    f"new Image().src='{URL}';new RTCPeerConnection({{iceServers:[{{urls:'stun:127.0.0.1:PORT'}}]}}).createDataChannel('x')</script><p>text</p>",
    "form": f"<form action='{URL}' method=post target=_self><input autofocus><button formaction='{URL}'>go</button></form>",
    "download": f"<a download href='data:text/plain,x'>x</a><iframe src='data:application/octet-stream,x'></iframe><iframe src='{URL}.zip'></iframe>",
    "frameset": f"<frameset cols='50%,50%'><frame src='{URL}'><frame src='file://FILE'></frameset>",
}

# Each leaves something that the next page might meet, or is hard to read.
ODD = {
    "motion": "<style>@keyframes k{to{margin-left:900px}}p{animation:k .1s infinite!important;transition:all 1s!important}</style><p>text</p>",
    "tall": "<div style='height:9000000px;background:red'>x</div>",
    "wide": "<div style='width:9000000px;background:red'>x</div>",
    "unclosed": "<!-- <p>text",
    "plaintext": "<plaintext><p>text",
    "bytes": "\0\ud800<p>te\0xt\x1b[31m</p>\ufffe",
    "focus": "<input autofocus><dialog open>x</dialog><details open><summary>s</summary>y</details><div popover>z</div>",
    "layers": "<style>@layer still;*{animation:none}@property --x{syntax:'<length>';inherits:true;initial-value:9px}</style><p>text</p>",
    "colour scheme": "<meta name=color-scheme content=dark><p>text</p>",
    "hidden colour scheme": "<meta content=dark name='color&#45;scheme'><p>text</p>",
    "colours of links": "<body link=lime vlink=lime><p>text</p>",
    "empty": "",
}

# With scripts allowed.
SCRIPTED = {
    "alerts": "<script>alert(1);confirm(2);prompt(3);onbeforeunload=()=>'no'</script><p>text</p>",
    "loop": "<p>text</p><script>for(;;){}</script>",
    "growth": "<script>const a=[];for(;;)a.push(new Array(1e6).fill(a.length))</script>",
    "elements": "<script>setInterval(()=>{for(let i=0;i<1e5;i++)document.body.append(document.createElement('p'))})</script><p>text</p>",
    "popups": "<script>for(let i=0;i<50;i++)window.open('about:blank','w'+i)</script><p>text</p>",
    "leaving": f"<script>setTimeout(()=>location='{URL}');location.href='about:blank'</script><p>text</p>",
    "requests": REACHES["requests by script"],
    "worker": f"<script>new Worker(URL.createObjectURL(new Blob([\"fetch('{URL}');for(;;){{}}\"])))</script><p>text</p>",
    "history": "<script>for(let i=0;i<1e4;i++)history.pushState({},'','#'+i);document.open();document.write('<p>new');</script>",
}
