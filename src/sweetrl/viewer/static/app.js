// The whole: which page an address shows, keys, light and dark.
// @ts-check
"use strict";

(() => {
  const { h, icon, button, data, filters, list, count } = sweetrl;
  const main = /** @type {HTMLElement} */ (document.getElementById("main"));
  /** @type {any} */
  let refresh = null; // what draws more of the page that is shown as the table grows

  /** Go to an address; `instead` takes the place of the last one, as filters do while they are changed. @param {string} address @param {boolean} [instead] */
  sweetrl.go = (address, instead) => {
    if (instead) {
      history.replaceState(null, "", address);
      route();
    } else location.hash = address.slice(1);
  };

  const PAGES = [
    ["dialogues", "Dialogues"],
    ["overview", "Overview"],
  ];

  function route() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const [page, ...rest] = path.split("/");
    const search = new URLSearchParams(query || "");
    const shown = page === "dialogue" ? "dialogues" : page || "dialogues";
    const asked = filters.write(page === "dialogue" ? list.state : filters.read(search));
    document.querySelector('[data-page="overview"]')?.setAttribute("href", `#/overview${asked && `?${asked}`}`);
    for (const link of document.querySelectorAll("#pages a")) {
      if (link.getAttribute("data-page") === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.body.dataset.page = page || "dialogues";
    document.title = `${PAGES.find(([key]) => key === shown)?.[1] || "Dialogues"} · ${data.meta.title} · sweetrl`;
    refresh = null;
    data.listeners.clear(); // the page that is shown next says what it waits for
    const failed = (/** @type {Error} */ error) => main.replaceChildren(h("p", { class: "empty" }, error.message));
    if (page === "dialogue") sweetrl.dialogue.show(main, rest.join("/"), search).catch(failed);
    else if (page === "overview") {
      refresh = () => sweetrl.overview.show(main, search).catch(failed);
      refresh();
    } else refresh = list.show(main, search);
  }
  sweetrl.route = route;

  function bar() {
    const links = PAGES.map(([key, label]) => h("a", { href: `#/${key}`, "data-page": key }, label));
    const tool = (/** @type {string} */ name, /** @type {string} */ key, /** @type {any} */ work) => {
      const look = { class: "button quiet", "aria-label": name, title: `${name} (${key})` };
      return button(icon(work.name), work, look);
    };
    const tools = [tool("Light or dark", "t", theme), tool("Keys", "?", keys)];
    document.getElementById("pages")?.replaceChildren(...links);
    const what = [h("b", {}, data.meta.title), ` · ${count(data.meta.count)} dialogues`];
    document.getElementById("what")?.replaceChildren(...what);
    document.getElementById("tools")?.replaceChildren(...tools);
  }

  /** The other colours. Where they are the system's, the page follows the system again. */
  function theme() {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const { dataset } = document.documentElement;
    const next = (dataset.theme || system) === "dark" ? "light" : "dark";
    if (next === system) delete dataset.theme;
    else dataset.theme = next;
    try {
      if (dataset.theme) localStorage.setItem("sweetrl-theme", dataset.theme);
      else localStorage.removeItem("sweetrl-theme");
    } catch {
      // a page from a disk may keep nothing: the choice lasts as long as the page
    }
  }

  const KEYS = [
    ["/", "search"],
    ["j or ↓, k or ↑", "next and previous dialogue"],
    ["Enter", "open"],
    ["u or Esc", "back to the list"],
    ["1, 2", "dialogues, overview"],
    ["n, p", "next and previous turn of the agent"],
    ["c", "choose a dialogue to put beside this one"],
    ["e", "open or fold everything that was sampled"],
    ["t", "light or dark"],
    ["?", "these keys"],
  ];

  function keys() {
    const rows = KEYS.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)));
    const close = button("Close", () => dialog.close());
    const look = { class: "keys", "aria-label": "Keys", onclose: () => dialog.remove() };
    const dialog = h("dialog", look, h("h2", {}, "Keys"), h("dl", {}, rows), close);
    document.body.append(dialog);
    dialog.showModal();
  }

  document.addEventListener("keydown", (event) => {
    const at = /** @type {HTMLElement} */ (event.target);
    const writing = at.matches?.("input:not([type=checkbox]), textarea, select");
    if (event.key === "Escape" && writing) return at.blur();
    if (writing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
      return undefined;
    const page = document.body.dataset.page;
    const click = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id))?.click();
    /** @type {Record<string, () => void>} */
    const actions = {
      "/": () => document.getElementById("search")?.focus(),
      "?": keys,
      t: theme,
      1: () => sweetrl.go("#/dialogues"),
      2: () => /** @type {any} */ (document.querySelector('[data-page="overview"]'))?.click(),
      u: () => click("back"),
      Escape: () => click("back"),
      j: () => (page === "dialogue" ? click("next") : list.move?.(1)),
      k: () => (page === "dialogue" ? click("previous") : list.move?.(-1)),
    };
    if (page === "dialogues")
      Object.assign(actions, { ArrowDown: () => list.move?.(1), ArrowUp: () => list.move?.(-1) });
    if (page === "dialogue")
      Object.assign(actions, {
        n: () => sweetrl.dialogue.step(1),
        p: () => sweetrl.dialogue.step(-1),
        c: () => document.getElementById("compare")?.focus(),
        e: () => {
          const all = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll("details.sampled")]);
          const open = all.some((one) => !one.open);
          for (const one of all) one.open = open;
        },
      });
    const action = actions[event.key];
    if (!action) return undefined;
    event.preventDefault();
    action();
    return undefined;
  });

  document.getElementById("skip")?.addEventListener("click", () => main.focus());

  async function begin() {
    try {
      const theme_ = localStorage.getItem("sweetrl-theme");
      if (theme_) document.documentElement.dataset.theme = theme_;
    } catch {
      // as above
    }
    try {
      await data.begin();
      list.own();
      bar();
      addEventListener("hashchange", route);
      let shown = false;
      const step = () => {
        if (shown)
          for (const listener of [...data.listeners]) listener(); // one that draws a page may add its own again
        else {
          shown = true;
          main.removeAttribute("aria-busy");
          route();
        }
      };
      await data.load(step);
      if (!shown) step(); // there are no dialogues at all
      if (document.body.dataset.page === "overview" && refresh) refresh();
      document.body.dataset.ready = "yes";
    } catch (error) {
      main.removeAttribute("aria-busy");
      main.replaceChildren(h("p", { class: "empty" }, /** @type {Error} */ (error).message));
    }
  }

  document.addEventListener("DOMContentLoaded", begin); // after all scripts of the page, and those with an export's data
})();
