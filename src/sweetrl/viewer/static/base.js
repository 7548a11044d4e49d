// Elements, numbers and words: what every part of the page uses. Text gets into the page as text, never as markup.
// @ts-check
"use strict";

/** @type {any} */
var sweetrl = globalThis.sweetrl || {};

(() => {
  // What steers a terminal or a page or hides (controls, bidi marks, halves of surrogates) is shown as U+FFFD; line
  // ends, tabs and the joiners that words are written with stay. As sweetrl.text.printable does.
  const STEERS = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}]/gu;

  /** Words that somebody else has chosen, made fit to be shown. @param {unknown} text */
  function visible(text) {
    return String(text).replace(STEERS, "\ufffd");
  }

  const SVG = "http://www.w3.org/2000/svg";

  /**
   * Put properties and children into an element. `style` takes custom properties, `on*` listeners; a child that is no
   * element is text.
   * @param {Element} element @param {Record<string, any>} properties @param {any[]} children
   */
  function fill(element, properties, children) {
    for (const [name, value] of Object.entries(properties)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style")
        for (const [key, one] of Object.entries(value))
          /** @type {any} */ (element).style.setProperty(key, String(one));
      else if (name === "value" || name === "checked" || name === "disabled" || name === "open" || name === "selected")
        /** @type {any} */ (element)[name] = value;
      else element.setAttribute(name, value === true ? "" : visible(value));
    }
    append(element, children);
    return element;
  }

  /** @param {Element} element @param {any[]} children */
  function append(element, children) {
    for (const child of children) {
      if (child === null || child === undefined || child === false) continue;
      if (Array.isArray(child)) append(element, child);
      else element.append(child instanceof Node ? child : visible(child));
    }
  }

  /** Make an HTML element. @param {string} tag @param {Record<string, any>} [properties] @param {...any} children @returns {any} */
  function h(tag, properties = {}, ...children) {
    return fill(document.createElement(tag), properties, children);
  }

  /** Make an SVG element. @param {string} tag @param {Record<string, any>} [properties] @param {...any} children @returns {any} */
  function s(tag, properties = {}, ...children) {
    return fill(document.createElementNS(SVG, tag), properties, children);
  }

  /** What is folded until the reader opens it. @param {any} title @param {...any} children */
  const folded = (title, ...children) => h("details", { class: "sampled" }, h("summary", {}, title), children);

  /** Words as they were written. @param {any} text */
  const verbatim = (text) => h("pre", { class: "plain" }, text);

  /**
   * A choice of one; `work` gets the value that is chosen.
   * @param {string[][]} options each a value and its label @param {string} chosen @param {(value: string) => void} work
   * @param {Record<string, any>} [more]
   */
  function select(options, chosen, work, more = {}) {
    const rows = options.map(([value, label]) => h("option", { value, selected: value === chosen }, label));
    return h("select", { ...more, onchange: (/** @type {any} */ event) => work(event.target.value) }, rows);
  }

  /** A select with its label. @param {string} label @param {any} control */
  const labelled = (label, control) => h("label", { class: "pick" }, h("span", {}, label), control);

  /** A button that does something. @param {any} label @param {() => void} onclick @param {Record<string, any>} [more] */
  function button(label, onclick, more = {}) {
    return h("button", { class: "button", type: "button", onclick, ...more }, label);
  }

  /**
   * A table that scrolls where it is too wide. A row is a `tr`, or its cells: elements as they are; of other values the
   * first is the row's head, and the rest are numbers.
   * @param {string[]} heads @param {any[]} rows @param {Record<string, any>} [properties] @param {string} [caption]
   */
  function table(heads, rows, properties = {}, caption) {
    const cell = (/** @type {any} */ value, /** @type {number} */ place) =>
      value instanceof Element ? value : place ? h("td", { class: "n" }, value) : h("th", { scope: "row" }, value);
    const lines = rows.map((row) => (Array.isArray(row) ? h("tr", {}, row.map(cell)) : row));
    const columns = heads.map((head) => h("th", { scope: "col" }, head));
    const parts = [h("thead", {}, h("tr", {}, columns)), h("tbody", {}, lines)];
    const head = caption && h("caption", { class: "offscreen" }, caption);
    return h("div", { class: "wide" }, h("table", properties, head, parts));
  }

  const ICONS = {
    yes: "M4 8.5l2.7 2.7L12 5.6",
    no: "M4.6 4.6l6.8 6.8M11.4 4.6l-6.8 6.8",
    lost: "M4 8h8",
    search: "M7 2.6a4.4 4.4 0 1 1 0 8.8 4.4 4.4 0 0 1 0-8.8zM10.4 10.4l3.2 3.2",
    back: "M10 3.5L5.5 8l4.5 4.5",
    next: "M6 3.5L10.5 8 6 12.5",
    copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
    filter: "M2.5 4h11M4.5 8h7M6.5 12h3",
    close: "M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6",
    theme: "M8 2.5a5.5 5.5 0 1 0 0 11zM8 2.5a5.5 5.5 0 0 1 0 11",
    keys: "M2.5 4.5h11v7h-11zM5 7h.01M8 7h.01M11 7h.01M5.5 9.3h5",
    run: "M5 3.5l7 4.5-7 4.5z",
    heat: "M3 12.5V8M6.3 12.5v-8M9.7 12.5v-5M13 12.5v-9",
    download: "M8 2.5v7.5M4.8 7L8 10.2 11.2 7M3 13h10",
    columns: "M2.5 3.5h11v9h-11zM6.2 3.5v9M9.8 3.5v9",
    print: "M4.5 6V2.5h7V6M4.5 11h-2V6h11v5h-2M4.5 9.5h7v4h-7z",
  };

  /** A small picture; it says nothing to a screen reader. @param {keyof typeof ICONS} name */
  function icon(name) {
    return s("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, s("path", { d: ICONS[name] }));
  }

  /** @param {number} value @param {number} [digits] */
  const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}\u00a0%`;
  /** @param {number} value @param {number} [digits] */
  const signed = (value, digits = 3) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
  const grouped = new Intl.NumberFormat("en");
  /** @param {number} value */
  const count = (value) => grouped.format(value);
  /** @param {number} value */
  const number = (value) => (Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4))));
  /** @param {number} many @param {string} one @param {string} [more] */
  const plural = (many, one, more) => `${count(many)} ${many === 1 ? one : more || `${one}s`}`;

  /** Wilson's score interval of a rate at 95 %. @param {number} hits @param {number} n */
  function wilson(hits, n) {
    if (!n) return { value: 0, low: 0, high: 1, n };
    const z = 1.959963984540054,
      p = hits / n,
      z2 = (z * z) / n;
    const middle = (p + z2 / 2) / (1 + z2);
    const half = (z / (1 + z2)) * Math.sqrt((p * (1 - p)) / n + z2 / (4 * n));
    return { value: p, low: Math.max(0, middle - half), high: Math.min(1, middle + half), n };
  }

  /** The mean with its normal interval at 95 %; of fewer than two values nothing is known. @param {number[]} values */
  function mean(values) {
    const n = values.length > 1 ? values.length : 0;
    const value = values.reduce((sum, one) => sum + one, 0) / (values.length || 1);
    const squares = values.reduce((sum, one) => sum + (one - value) ** 2, 0);
    const half = n ? 1.959963984540054 * Math.sqrt(squares / (n - 1) / n) : Infinity;
    return { value, low: value - half, high: value + half, n };
  }

  /** Say something for a moment, to eyes and to screen readers. @param {string} words */
  function toast(words) {
    const place = document.getElementById("toast");
    if (!place) return;
    place.textContent = visible(words);
    place.classList.add("shown");
    clearTimeout(toast.timer);
    toast.timer = setTimeout(() => place.classList.remove("shown"), 2600);
  }
  /** @type {any} */
  toast.timer = 0;

  /** Put text on the clipboard. @param {string} text @param {string} what */
  async function copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { class: "offscreen", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    toast(`${what} copied`);
  }

  const PYTHON =
    /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|\b(def|return|if|elif|else|for|while|in|not|and|or|is|None|True|False|class|import|from|as|with|try|except|finally|raise|lambda|pass|break|continue|yield|assert)\b|\b(\d[\d_.eE]*)\b/g;

  /** Code with line numbers; Python's words are coloured. @param {string} text @param {string} language */
  function code(text, language) {
    const lines = h("code", {});
    const shown = text.replace(/\r\n?/g, "\n").replace(/\n+$/, "");
    /** @type {{text: string, kind: string}[][]} */
    const rows = [[]];
    const add = (/** @type {string} */ words, /** @type {string} */ kind) =>
      words.split("\n").forEach((part, place) => {
        if (place) rows.push([]);
        if (part) rows[rows.length - 1].push({ text: part, kind });
      });
    let last = 0;
    if (language === "python") {
      for (const found of shown.matchAll(PYTHON)) {
        add(shown.slice(last, found.index), "");
        add(found[0], found[1] ? "comment" : found[2] ? "string" : found[3] ? "keyword" : "number");
        last = found.index + found[0].length;
      }
    }
    add(shown.slice(last), "");
    for (const row of rows) {
      const parts = row.map((part) => (part.kind ? h("span", { class: `c-${part.kind}` }, part.text) : part.text));
      lines.append(h("span", { class: "line" }, parts, "\n"));
    }
    const label = language === "text" ? "Text" : `Code: ${language}`;
    return h("pre", { class: "code", tabindex: "0", role: "region", "aria-label": label }, lines);
  }

  /**
   * A button that unfolds what is in it, and folds when the reader goes elsewhere.
   * @param {string} label @param {keyof typeof ICONS} picture @param {...any} children
   */
  function menu(label, picture, ...children) {
    const summary = h("summary", { class: "button" }, icon(picture), label);
    const box = h("details", { class: "menu" }, summary, h("div", { class: "unfolded" }, children));
    box.addEventListener("focusout", (/** @type {any} */ event) => {
      if (event.relatedTarget && !box.contains(event.relatedTarget)) box.open = false;
    });
    box.addEventListener("keydown", (/** @type {any} */ event) => {
      if (event.key !== "Escape" || !box.open) return;
      event.stopPropagation();
      box.open = false;
      summary.focus();
    });
    return box;
  }
  document.addEventListener("click", (event) => {
    for (const box of document.querySelectorAll("details.menu[open]"))
      if (!box.contains(/** @type {any} */ (event.target))) box.removeAttribute("open");
  });

  /** Call `work` once nothing has asked for it for `wait` ms. @param {(...rest: any[]) => void} work @param {number} wait */
  function later(work, wait) {
    /** @type {any} */
    let timer = 0;
    return (/** @type {any[]} */ ...rest) => {
      clearTimeout(timer);
      timer = setTimeout(() => work(...rest), wait);
    };
  }

  Object.assign(sweetrl, {
    visible,
    h,
    s,
    folded,
    verbatim,
    select,
    labelled,
    button,
    table,
    icon,
    percent,
    signed,
    count,
    number,
    plural,
    wilson,
    mean,
    toast,
    copy,
    code,
    menu,
    later,
  });
  globalThis.sweetrl = sweetrl;
})();
