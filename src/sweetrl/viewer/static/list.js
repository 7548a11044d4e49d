// The list: search, filters with counts, and a table of which only the rows in sight are in the page.
// @ts-check
"use strict";

(() => {
  const { h, icon, button, data, filters, count, plural, number, later } = sweetrl;
  const NARROW = matchMedia("(max-width: 859px)");
  const SPARE = 8; // rows drawn above and below those in sight

  /** @type {any} */
  const list = { rows: new Int32Array(0), current: -1, state: filters.read(new URLSearchParams()) };

  /** The address of a dialogue, beside another one where there is one. @param {number} row @param {number} [other] */
  list.address = (row, other) => {
    const part = (/** @type {number} */ one) =>
      [data.word("source", one), data.tasks[one], data.columns.attempt[one]].map(encodeURIComponent).join("/");
    return `#/dialogue/${part(row)}${other === undefined ? "" : `?with=${encodeURIComponent(part(other))}`}`;
  };

  /** A colour for a method: the same wherever it is shown. @param {string} method */
  list.tone = (method) => {
    const fixed = { base: 0, "zero-shot": 0, trained: 1, sweet: 1 };
    if (method in fixed) return `var(--tone-${fixed[/** @type {keyof typeof fixed} */ (method)]})`;
    const others = data.meta.words.method.filter((/** @type {string} */ one) => !(one in fixed));
    return `var(--tone-${2 + (others.indexOf(method) % 8)})`;
  };

  /** @param {number} row */
  list.outcome = (row) => (data.columns.scored[row] === 0 ? "lost" : data.columns.success[row] === 1 ? "yes" : "no");

  const go = (/** @type {any} */ change) =>
    sweetrl.go(`#/dialogues?${filters.write({ ...list.state, ...change })}`, true);

  /** Draw the list's page into `main`; where it is there already, only what has changed. @param {HTMLElement} main @param {URLSearchParams} search */
  list.show = (main, search) => {
    list.state = filters.read(search);
    if (!list.page || !main.contains(list.page.table)) list.page = frame(main);
    data.listeners.add(refresh);
    refresh();
    return refresh;
  };

  /** The parts of the page that stay. @param {HTMLElement} main */
  function frame(main) {
    const box = h("input", {
      type: "search",
      id: "search",
      placeholder: "Search in all words …",
      "aria-label": "Search in the dialogues' words",
      autocomplete: "off",
      spellcheck: "false",
    });
    box.addEventListener(
      "input",
      later(() => go({ q: box.value }), 160),
    );
    const panel = h("aside", { class: "filters", id: "filters", "aria-label": "Filters" });
    const toggle = button([icon("filter"), "Filters"], () => fold(panel, toggle), {
      class: "button only-narrow",
      "aria-controls": "filters",
      "aria-expanded": "false",
    });
    const quiet = { class: "button quiet" };
    const order = (/** @type {string} */ sort) => go({ sort });
    const sorting = sweetrl.select(filters.SORTS, "", order, { "aria-label": "Order" });
    const turn = button("", () => go({ down: !list.state.down }), { ...quiet, title: "Turn the order round" });
    const columns = sweetrl.menu("Columns", "columns");
    const { files } = sweetrl;
    const download = sweetrl.menu(
      "Download",
      "download",
      button("Numbers (CSV)", () => files.save("dialogues.csv", files.csv(list.rows), "text/csv"), quiet),
      button("Dialogues (JSON Lines)", () => files.lines(list.rows), quiet),
    );
    const told = h("p", { class: "told", role: "status", "aria-live": "polite" });
    const chips = h("div", { class: "chips" });
    const head = h("div", { class: "head", role: "rowgroup" });
    const inner = h("div", { class: "inner", role: "presentation" });
    const scroll = h("div", { class: "scroll", role: "rowgroup" }, inner);
    const look = data.meta.words.temperature.length > 1 ? "table study" : "table";
    const table = h("div", { class: look, role: "table", "aria-label": "Dialogues", tabindex: "-1" }, head, scroll);
    const search = h("div", { class: "searchbox" }, icon("search"), box);
    const sorter = h("label", { class: "sorter" }, h("span", {}, "Order"), sorting, turn);
    const bar = h("div", { class: "listbar" }, search, sorter, columns, download, toggle);
    const results = h("section", { class: "results", "aria-label": "Dialogues" }, bar, chips, told, table);
    main.replaceChildren(h("div", { class: "listpage" }, panel, results));
    return { box, panel, sorting, turn, told, chips, columns, table, head, show: view(scroll, inner, table), key: "" };
  }

  /** Apply the state, and show what it comes to. */
  async function refresh() {
    const { page, state } = list;
    const { told, panel, box } = page;
    /** @type {Uint8Array | null} */
    let found = null;
    if (state.q.trim()) {
      told.textContent = "Searching …";
      try {
        found = await data.search(state.q);
      } catch (error) {
        told.textContent = /** @type {Error} */ (error).message;
        return;
      }
    }
    if (list.state !== state || !page.table.isConnected) return; // somebody has gone on
    const started = performance.now();
    const result = filters.apply(state, found);
    list.rows = result.rows;
    const key = `${filters.write(state)} ${data.loaded}`;
    if (page.key !== key) {
      page.key = key;
      const held = panel.contains(document.activeElement) ? document.activeElement?.getAttribute("data-key") : null;
      const top = panel.scrollTop;
      panel.replaceChildren(...sections(state, result.facets, go).filter(Boolean));
      if (top) panel.scrollTop = top;
      if (held)
        /** @type {any} */ (panel.querySelector(`[data-key="${CSS.escape(held)}"]`))?.focus({ preventScroll: true });
      page.chips.replaceChildren(...chosen(state, go));
      if (document.activeElement !== box) box.value = state.q;
      page.sorting.value = state.sort;
      page.turn.textContent = state.down ? "↓" : "↑";
      page.turn.setAttribute("aria-pressed", String(state.down));
      page.head.replaceChildren(header(state, go));
      if (page.chosen !== state.columns.join()) {
        page.chosen = state.columns.join();
        const column = document.activeElement?.getAttribute("data-column");
        page.columns.querySelector(".unfolded").replaceChildren(...columnBoxes(go));
        if (column) page.columns.querySelector(`[data-column="${CSS.escape(column)}"]`)?.focus();
      }
    }
    page.show(result.rows);
    const of = result.rows.length === data.loaded ? "" : ` of ${count(data.loaded)}`;
    told.textContent = `${plural(result.rows.length, "dialogue")}${of}${data.loaded < data.meta.count ? `; reading ${count(data.meta.count)} …` : ""}${data.running().join("")}`;
    list.spent = performance.now() - started;
  }

  /** @param {HTMLElement} panel @param {HTMLElement} button */
  function fold(panel, button) {
    const open = panel.classList.toggle("open");
    button.setAttribute("aria-expanded", String(open));
    if (open) /** @type {any} */ (panel.querySelector("input, button"))?.focus();
  }

  // The table

  // Key, label, order, width among chosen ones, and whether it is there unless others are chosen.
  const COLUMNS = /** @type {[string, string, string, string, boolean][]} */ ([
    ["task", "Task", "task", "minmax(236px, 1.5fr)", true],
    ["method", "Method", "", "minmax(80px, 0.9fr)", true],
    ["topic", "Domain", "", "minmax(70px, 0.7fr)", true],
    ["passed", "Result", "reward", "116px", true],
    ["turns", "Turns", "turns", "56px", true],
    ["questions", "Questions", "questions", "80px", true],
    ["faults", "What went wrong", "faults", "minmax(104px, 1.5fr)", true],
    ["advantage", "Advantage", "advantage", "124px", true],
    ["request", "Request", "", "minmax(140px, 3fr)", false],
    ["answer", "Answer", "", "minmax(140px, 3fr)", false],
    ["reward", "Reward", "reward", "64px", false],
    ["tokens", "Tokens", "tokens", "64px", false],
    ["pairs", "Pairs", "", "56px", false],
    ["outcome", "How it ended", "", "minmax(80px, 0.7fr)", false],
    ["first_fault", "First fault", "", "minmax(80px, 0.7fr)", false],
    ["temperature", "Temperature", "", "90px", false],
    ["persona", "User", "", "minmax(60px, 0.6fr)", false],
    ["seed", "Training seed", "", "90px", false],
    ["round", "Round", "", "60px", false],
    ["source", "Source", "", "minmax(80px, 1fr)", false],
    ["label", "Label", "label", "minmax(64px, 1fr)", false],
  ]);

  /** Take up the measures of the domain by its names for them, once they are known. */
  list.own = () => {
    const kinds = /** @type {[any[], any[]][]} */ ([
      [filters.RANGES, []],
      [filters.SORTS, []],
      [COLUMNS, ["90px", false]],
    ]);
    for (const [key, label] of data.meta.measures.slice(1))
      for (const [rows, rest] of kinds) {
        const known = rows.find(([one]) => one === key);
        if (!known) rows.push([key, label, ...(rest.length ? [key, ...rest] : [])]);
        else if (!rows.some(([, name]) => name.toLowerCase() === label.toLowerCase())) known[1] = label;
      }
  };
  const USUAL = COLUMNS.filter(([, , , , usual]) => usual).map(([key]) => key);

  /** The columns that a state shows; the task is always one. A narrow page has room for the usual ones only. @param {any} state */
  const shown = (state) =>
    COLUMNS.filter(([key, , , , usual]) =>
      state.columns.length && !NARROW.matches ? key === "task" || state.columns.includes(key) : usual,
    );

  /** @param {(change: any) => void} go */
  function columnBoxes(go) {
    const on = shown(list.state).map(([key]) => key);
    const turn = (/** @type {string} */ key) => {
      const next = filters.toggled(on, key);
      go({ columns: next.length === USUAL.length && USUAL.every((one) => next.includes(one)) ? [] : next });
    };
    return COLUMNS.filter(([key]) => key !== "task").map(([key, label]) => {
      const box = { type: "checkbox", checked: on.includes(key), onchange: () => turn(key), "data-column": key };
      return h("label", { class: "choice" }, h("input", box), label);
    });
  }

  /** @param {any} state @param {(change: any) => void} go */
  function header(state, go) {
    const cells = shown(state).map(([key, label, sort]) => {
      const down = state.sort === sort && !state.down; // the next click turns it round
      const sorted = sort && state.sort === sort ? (state.down ? "descending" : "ascending") : "none";
      const onclick = () => go(state.sort === sort ? { down } : { sort, down: sort !== "task" });
      const arrow = h("i", { "aria-hidden": "true" }, sorted === "none" ? "" : state.down ? "↓" : "↑");
      const body = sort ? h("button", { type: "button", onclick }, label, arrow) : label;
      return h("div", { class: cell(key), role: "columnheader", "aria-sort": sort ? sorted : null }, body);
    });
    return h("div", { class: "row", role: "row", "aria-rowindex": "1" }, cells);
  }

  /** @param {string} key */
  const cell = (key) =>
    `cell ${WORDS.includes(key) ? `its-${key}` : key.split(" ")[0]}${USUAL.includes(key) ? "" : " extra"}`;

  /** Keep the rows in sight in the page. @param {HTMLElement} scroll @param {HTMLElement} inner @param {HTMLElement} table */
  function view(scroll, inner, table) {
    let rows = new Int32Array(0);
    let first = -1,
      last = -1,
      size = "";
    const height = () => (NARROW.matches ? 88 : 44);
    const draw = (again = false) => {
      const each = height();
      const from = Math.max(0, Math.floor(scroll.scrollTop / each) - SPARE);
      const to = Math.min(rows.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / each) + SPARE);
      if (!again && from === first && to === last) return;
      [first, last, size] = [from, to, `${scroll.clientWidth} ${scroll.clientHeight}`];
      const active = document.activeElement;
      const focused = inner.contains(active) ? active?.getAttribute("data-place") : null;
      const lines = Array.from({ length: to - from }, (_, place) => line(rows[from + place], from + place, each));
      inner.style.setProperty("height", `${rows.length * each}px`);
      inner.replaceChildren(...lines);
      if (list.state.columns.some((/** @type {string} */ key) => WORDS.includes(key))) fillWords();
      const none = data.loaded ? "No dialogue is like that. Take a filter away, or search for less." : "Reading …";
      if (!rows.length) inner.append(h("p", { class: "empty" }, none));
      if (focused)
        /** @type {any} */ (inner.querySelector(`[data-place="${focused}"]`))?.focus({ preventScroll: true });
    };
    scroll.addEventListener("scroll", () => draw(), { passive: true });
    new ResizeObserver(() => `${scroll.clientWidth} ${scroll.clientHeight}` !== size && draw(true)).observe(scroll);
    list.move = (/** @type {number} */ step) => {
      if (!rows.length) return;
      const here = document.activeElement?.getAttribute("data-place") ?? null;
      const last = list.current >= 0 && list.current < rows.length ? list.current : 0;
      const place = here === null ? last : Math.min(rows.length - 1, Math.max(0, Number(here) + step));
      const each = height();
      if (place * each < scroll.scrollTop) scroll.scrollTop = place * each;
      if ((place + 1) * each > scroll.scrollTop + scroll.clientHeight)
        scroll.scrollTop = (place + 1) * each - scroll.clientHeight;
      draw(true);
      /** @type {any} */ (inner.querySelector(`[data-place="${place}"]`))?.focus();
      list.current = place;
    };
    return (/** @type {any} */ found) => {
      if (found.length !== rows.length && scroll.scrollTop) scroll.scrollTop = 0;
      rows = found;
      const { advantage } = data.columns;
      table.classList.toggle("chosen", Boolean(list.state.columns.length));
      const widths = shown(list.state).map(([, , , width]) => width);
      table.style.setProperty("--columns", widths.join(" "));
      table.classList.toggle("unranked", !rows.some((row) => advantage[row] === advantage[row]));
      table.setAttribute("aria-rowcount", String(rows.length + 1));
      draw(true);
      if (list.current > 0 && list.restore) {
        scroll.scrollTop = Math.max(0, list.current * height() - scroll.clientHeight / 2);
        list.restore = false;
      }
    };
  }

  /** One row. @param {number} row @param {number} place @param {number} each */
  function line(row, place, each) {
    const style = { top: `${place * each}px`, height: `${each}px` };
    const cells = shown(list.state).map(([key]) => {
      const look = { class: cell(key), role: "cell", "data-row": WORDS.includes(key) ? row : null };
      return h("div", look, inCell(key, row, place));
    });
    return h("div", { class: "row", role: "row", "aria-rowindex": place + 2, style }, cells);
  }
  const WORDS = ["request", "answer"]; // columns whose words are asked for when their rows are in sight

  /** What stands in a cell. @param {string} key @param {number} row @param {number} place @returns {any} */
  function inCell(key, row, place) {
    const { columns } = data;
    if (key === "task") return [sweetrl.parts.mark(list.outcome(row), list.said(row)), name(row, place)];
    if (key === "method") {
      const method = data.word("method", row);
      const more = list.how(row).filter(Boolean).join(" · ");
      const dot = h("span", { class: "dot", style: { "--tone": list.tone(method) } });
      return [dot, h("span", { class: "name" }, method), more && h("small", {}, more)];
    }
    if (key === "topic") {
      const held = { class: "tag", title: "a domain that no training task has" };
      return [data.word("topic", row), columns.held_out[row] === 1 && h("small", held, "held out")];
    }
    if (key === "passed") return result(row);
    if (key === "faults") return faultTags(row);
    if (WORDS.includes(key)) return "";
    if (data.meta.kinds[key] === "word") return data.word(key, row).replaceAll("_", " ");
    const value = columns[key][row];
    if (key === "label") return [Number.isNaN(value) ? "" : number(value), h("small", {}, data.notes.get(row) || "")];
    if (Number.isNaN(value)) return "";
    if (key === "advantage")
      return [sweetrl.parts.bar(value, list.scale()), h("span", { class: "figure" }, sweetrl.signed(value, 2))];
    return number(value);
  }

  /** At which temperature, and with which user. @param {number} row */
  list.how = (row) => [
    data.word("temperature", row) && `T=${data.word("temperature", row)}`,
    data.word("persona", row),
  ];

  const OUTCOMES = { yes: "solved", no: "not solved", lost: "lost" };
  /** How a dialogue went, in words. @param {number} row */
  list.said = (row) => OUTCOMES[/** @type {"yes"} */ (list.outcome(row))];

  /** The task's name, which leads to the dialogue; in "won by A, lost by B" beside the one of B. @param {number} row @param {number} place */
  function name(row, place) {
    const { won, lost } = list.state;
    const loser = (/** @type {number} */ one) =>
      data.word("method", one) === lost && data.pairKey(one) === data.pairKey(row);
    const other = won && lost ? data.related(row).find(loser) : undefined;
    const attempt = data.columns.attempt[row] ? ` #${data.columns.attempt[row]}` : "";
    const running = data.word("stage", row).endsWith(", running") ? " running" : "";
    const look = { href: list.address(row, other), "data-place": place, onclick: () => (list.current = place) };
    return h("a", look, data.tasks[row], h("small", {}, attempt, running));
  }

  /** Put the words of the rows in sight into their cells. */
  const fillWords = later(() => {
    const cells = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".inner [data-row]:empty")]);
    for (const cell_ of cells)
      data.dialogue(Number(cell_.dataset.row)).then(
        (/** @type {any} */ found) => {
          const chosen_ = cell_.classList.contains("its-request") ? found.task.request : found.answer;
          const words = sweetrl.visible(chosen_ || "");
          cell_.textContent = words.slice(0, 400).replace(/\s+/g, " ");
          cell_.title = words.slice(0, 2000);
        },
        () => undefined, // the dialogue's own page says what is wrong
      );
  }, 120);

  /** Tests passed as a bar, or the reward. @param {number} row */
  function result(row) {
    const { passed, tests, reward, scored } = data.columns;
    if (scored[row] === 0) return h("span", { class: "muted" }, "lost");
    const share = tests[row] > 0 ? passed[row] / tests[row] : reward[row];
    const words =
      tests[row] > 0 ? `${passed[row]}/${tests[row]}` : Number.isNaN(reward[row]) ? "" : reward[row].toFixed(2);
    return [
      h("span", { class: "meter", style: { "--share": Math.min(1, Math.max(0, share || 0)) } }, h("i", {})),
      h("span", { class: "figure" }, words),
    ];
  }

  /** @param {number} row */
  function faultTags(row) {
    return filters.FAULTS.filter(([key]) => data.columns[key][row] > 0).map(([key, label]) => {
      const many = data.columns[key][row];
      return h("span", { class: `tag fault f-${key}`, title: label }, many > 1 ? `${many} ${key}` : key);
    });
  }

  /** The advantage at which bars are full: most lie within. */
  list.scale = () => {
    if (list.scaled === data.loaded && list.most) return list.most;
    const values = [];
    const step = Math.max(1, Math.floor(data.loaded / 4000));
    for (let row = 0; row < data.loaded; row += step)
      if (!Number.isNaN(data.columns.advantage[row])) values.push(Math.abs(data.columns.advantage[row]));
    values.sort((a, b) => a - b);
    list.scaled = data.loaded;
    return (list.most = values[Math.floor(values.length * 0.95)] || 1);
  };

  // Filters

  /** @param {any} state @param {Record<string, any>} facets @param {(change: any) => void} go */
  function sections(state, facets, go) {
    const { sort, down, columns } = state;
    const parts = [solved(state, facets, go), duel(state, go), faultsOf(state, facets, go)];
    for (const [key, label] of filters.FACETS)
      if (data.meta.words[key].length > 1) parts.push(facet(key, label, state, facets[key], go));
    parts.push(ranges(state, go), moreOf(state, facets, go));
    const clear = () => go({ ...filters.read(new URLSearchParams()), sort, down, columns });
    const look = { class: "button quiet", disabled: filters.idle(state) };
    const head = h("div", { class: "filterhead" }, h("h2", {}, "Filters"), button("Clear", clear, look));
    return [head, ...parts];
  }

  const inWords = (/** @type {string} */ word) => word.replaceAll("_", " ") || "not said";

  /** A box with a label and a count. @param {string} name @param {any} label @param {number} many @param {boolean} on @param {() => void} turn @param {any} [extra] */
  function choice(name, label, many, on, turn, extra = {}) {
    return h(
      "label",
      { class: `choice${many || on ? "" : " none"}`, ...extra },
      h("input", { type: "checkbox", checked: on, onchange: turn, "data-key": name }),
      h("span", { class: "label" }, label),
      h("span", { class: "many" }, count(many)),
    );
  }

  /** Ask for a truth, or no longer. @param {any} state @param {string} key @param {boolean} value @param {(change: any) => void} go */
  function turnTruth(state, key, value, go) {
    const { [key]: before, ...others } = state.truths;
    go({ truths: before === value ? others : { ...others, [key]: value } });
  }

  /** @param {any} state @param {any} facets @param {(change: any) => void} go */
  function solved(state, facets, go) {
    const [no, yes] = facets.success;
    const box = (/** @type {string} */ name, /** @type {string} */ label, /** @type {number} */ many, value = false) =>
      choice(name, label, many, state.truths.success === value, () => turnTruth(state, "success", value, go));
    const boxes = [box("success yes", "Solved", yes, true), box("success no", "Not solved", no)];
    return group(data.meta.measures[0][1], boxes);
  }

  /** @param {any} state @param {(change: any) => void} go */
  function duel(state, go) {
    const methods = data.meta.words.method;
    if (methods.length < 2) return null;
    const options = [["", "any"], ...methods.map((/** @type {string} */ one) => [one, one])];
    const pick = (/** @type {string} */ key, /** @type {string} */ label) => {
      const chosen = (/** @type {string} */ value) => go({ [key]: value });
      return sweetrl.labelled(label, sweetrl.select(options, state[key], chosen, { "data-key": key }));
    };
    return group("Same task, two methods", [pick("won", "Won by"), pick("lost", "Lost by")]);
  }

  /** @param {any} state @param {any} facets @param {(change: any) => void} go */
  function faultsOf(state, facets, go) {
    const known = filters.FAULTS.filter(([key]) => facets[`fault ${key}`] || state.faults.includes(key));
    if (!known.length) return null;
    const boxes = known.map(([key, label, title]) => {
      const [name, turn] = [`fault ${key}`, () => go({ faults: filters.toggled(state.faults, key) })];
      return choice(name, label, facets[name], state.faults.includes(key), turn, { title });
    });
    return group("What went wrong", boxes);
  }

  /** @param {string} key @param {string} label @param {any} state @param {Uint32Array} sums @param {(change: any) => void} go */
  function facet(key, label, state, sums, go) {
    const on = state.words[key] || [];
    const names = data.meta.words[key];
    const places = names
      .map((/** @type {string} */ _, /** @type {number} */ place) => place)
      .filter((/** @type {number} */ place) => sums[place] || on.includes(names[place]));
    places.sort((/** @type {number} */ a, /** @type {number} */ b) => sums[b] - sums[a] || a - b);
    const turn = (/** @type {string} */ word) => go({ words: { ...state.words, [key]: filters.toggled(on, word) } });
    const boxes = places.map((/** @type {number} */ place) => {
      const name = names[place];
      return choice(`${key} ${name}`, inWords(name), sums[place], on.includes(name), () => turn(name));
    });
    const rest = boxes.splice(6);
    const ontoggle = (/** @type {any} */ event) => (event.target.open ? opened.add(key) : opened.delete(key));
    const look = { class: "more", open: opened.has(key), ontoggle };
    const more = rest.length > 0 && h("details", look, h("summary", {}, `${rest.length} more`), rest);
    return group(label, [boxes, more]);
  }
  /** @type {Set<string>} */
  const opened = new Set();

  /** @param {any} state @param {(change: any) => void} go */
  function ranges(state, go) {
    const known = filters.RANGES.filter(([key]) =>
      data.columns[key].subarray(0, data.loaded).some((/** @type {number} */ value) => value > 0 || value < 0),
    );
    return group(
      "Numbers",
      known.map(([key, label]) => {
        const range = state.ranges[key] || [null, null];
        const field = (/** @type {0 | 1} */ end) => {
          const onchange = (/** @type {any} */ event) => {
            const next = [...range];
            next[end] = event.target.value === "" ? null : Number(event.target.value);
            const all = { ...state.ranges, [key]: next };
            if (next[0] === null && next[1] === null) delete all[key];
            go({ ranges: all });
          };
          const says = { placeholder: end ? "to" : "from", "aria-label": `${label}, ${end ? "at most" : "at least"}` };
          const look = { type: "number", step: "any", value: range[end] ?? "", "data-key": `${key} ${end}` };
          return h("input", { ...look, ...says, onchange });
        };
        const between = h("span", { "aria-hidden": "true" }, "–");
        return h("div", { class: "range" }, h("span", {}, label), field(0), between, field(1));
      }),
    );
  }

  /** @param {any} state @param {any} facets @param {(change: any) => void} go */
  function moreOf(state, facets, go) {
    const known = filters.TRUTHS.filter(
      ([key]) => key !== "success" && ((facets[key][0] && facets[key][1]) || key in state.truths),
    );
    if (!known.length) return null;
    const boxes = known.map(([key, , , yes]) =>
      choice(key, yes, facets[key][1], state.truths[key] === true, () => turnTruth(state, key, true, go)),
    );
    return group("More", boxes);
  }

  /** @param {string} label @param {any[]} children */
  function group(label, children) {
    return h("fieldset", {}, h("legend", {}, label), children);
  }

  /** What is chosen, each to be taken away. @param {any} state @param {(change: any) => void} go */
  function chosen(state, go) {
    /** @type {[string, () => void][]} */
    const found = [];
    const without = (/** @type {any} */ all, /** @type {string} */ key) =>
      Object.fromEntries(Object.entries(all).filter(([one]) => one !== key));
    if (state.q) found.push([`“${state.q}”`, () => go({ q: "" })]);
    if (state.won && state.lost)
      found.push([`won by ${state.won}, lost by ${state.lost}`, () => go({ won: "", lost: "" })]);
    for (const [key, , , yes, no] of filters.TRUTHS)
      if (key in state.truths)
        found.push([state.truths[key] ? yes : no, () => go({ truths: without(state.truths, key) })]);
    for (const [key, label] of filters.FAULTS)
      if (state.faults.includes(key)) found.push([label, () => go({ faults: filters.toggled(state.faults, key) })]);
    for (const [key, label] of filters.FACETS)
      if (state.words[key]) {
        const words = `${label}: ${state.words[key].map(inWords).join(", ")}`;
        found.push([words, () => go({ words: without(state.words, key) })]);
      }
    for (const [key, label] of filters.RANGES)
      if (state.ranges[key]) {
        const [low, high] = state.ranges[key];
        found.push([`${label} ${low ?? ""}–${high ?? ""}`, () => go({ ranges: without(state.ranges, key) })]);
      }
    return found.map(([words, drop]) =>
      button([words, icon("close")], drop, { class: "chip", "aria-label": `Take away: ${words}` }),
    );
  }

  sweetrl.list = list;
})();
