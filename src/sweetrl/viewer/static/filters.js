// Which dialogues are listed, and in which order: a state that the address holds, and its application to the table.
// @ts-check
"use strict";

(() => {
  const { data } = sweetrl;

  const FACETS = [
    ["method", "Method"],
    ["stage", "Stage"],
    ["topic", "Domain"],
    ["first_fault", "First fault"],
    ["outcome", "How it ended"],
    ["temperature", "Temperature"],
    ["persona", "User"],
    ["seed", "Training seed"],
    ["round", "Round"],
    ["domain", "Suite"],
    ["source", "Source"],
  ];
  // Truths: [key, label, column, what yes is called, what no is called].
  const TRUTHS = [
    ["success", "Solved", "success", "solved", "not solved"],
    ["held_out", "Domain", "held_out", "held-out domain", "seen domain"],
    ["ranked", "Ranked by the critic", "ranked", "ranked", "not ranked"],
    ["needed_last", "Needed question ranked last", "needed_last", "critic ranked a needed question last", "not"],
    ["words", "Words", "words", "with its words", "numbers only"],
  ];
  const FAULTS = [
    ["premature", "premature answer", "answered with turns left, before everything was told"],
    ["untold", "detail not asked for", "a hidden detail that no question brought out"],
    ["repeated", "repeated question", "asked again for what was asked before"],
    ["irrelevant", "irrelevant question", "about what this kind of task cannot have"],
    ["unhinted", "unhinted question", "about what the request does not hint at"],
    ["forgotten", "forgotten detail", "told, and missing from the answer"],
    ["mistaken", "mistaken detail", "told, and in the answer with another value"],
  ];
  const RANGES = [
    ["reward", "Reward"],
    ["passed", "Tests passed"],
    ["turns", "Turns"],
    ["questions", "Questions"],
    ["advantage", "Advantage, mean"],
    ["least_advantage", "Advantage, least"],
    ["pairs", "Preference pairs"],
    ["tokens", "Tokens"],
    ["label", "Label"],
  ];
  const SORTS = [["", "As collected"], ["task", "Task"], ["faults", "Number of faults"], ...RANGES];

  /**
   * @typedef {{q: string, words: Record<string, string[]>, truths: Record<string, boolean>, faults: string[],
   *   ranges: Record<string, [number | null, number | null]>, won: string, lost: string, columns: string[],
   *   sort: string, down: boolean}} State
   */

  /** Read a state from an address. @param {URLSearchParams} search @returns {State} */
  function read(search) {
    /** @type {State} */
    const state = {
      q: search.get("q") || "",
      words: {},
      truths: {},
      faults: [],
      ranges: {},
      won: search.get("won") || "",
      lost: search.get("lost") || "",
      columns: (search.get("columns") || "").split(",").filter(Boolean),
      sort: "",
      down: false,
    };
    for (const [key] of FACETS) if (search.getAll(key).length) state.words[key] = search.getAll(key);
    for (const [key] of TRUTHS) if (search.has(key)) state.truths[key] = search.get(key) !== "no";
    state.faults = search.getAll("fault").filter((name) => FAULTS.some(([key]) => key === name));
    const bound = (/** @type {string} */ text) => (text === "" || Number.isNaN(Number(text)) ? null : Number(text));
    for (const [key] of RANGES) {
      const [low, high] = (search.get(key) || "").split("..");
      if (high !== undefined) state.ranges[key] = [bound(low), bound(high)];
    }
    const sort = search.get("sort") || "";
    state.down = sort.startsWith("-");
    const order = state.down ? sort.slice(1) : sort;
    state.sort = SORTS.some(([key]) => key === order) ? order : "";
    return state;
  }

  /** Write a state as an address. @param {State} state */
  function write(state) {
    const search = new URLSearchParams();
    if (state.q) search.set("q", state.q);
    for (const [key] of FACETS) for (const word of state.words[key] || []) search.append(key, word);
    for (const [key] of TRUTHS) if (key in state.truths) search.set(key, state.truths[key] ? "yes" : "no");
    for (const name of state.faults) search.append("fault", name);
    for (const [key] of RANGES) {
      const range = state.ranges[key];
      if (range) search.set(key, `${range[0] ?? ""}..${range[1] ?? ""}`);
    }
    if (state.won) search.set("won", state.won);
    if (state.lost) search.set("lost", state.lost);
    if (state.columns.length) search.set("columns", state.columns.join(","));
    if (state.sort || state.down) search.set("sort", (state.down ? "-" : "") + state.sort);
    return search.toString();
  }

  /** How many faults of all kinds a dialogue has. @param {number} row */
  function faults(row) {
    let sum = 0;
    for (const [key] of FAULTS) sum += data.columns[key][row] || 0;
    return sum;
  }

  /** Rows of `won` that are solved where `lost` failed at the same task and seed. @param {string} won @param {string} lost */
  function duel(won, lost) {
    const methods = data.columns.method,
      { success, scored } = data.columns;
    const winner = data.meta.words.method.indexOf(won),
      loser = data.meta.words.method.indexOf(lost);
    const failed = new Set();
    for (let row = 0; row < data.loaded; row++)
      if (methods[row] === loser && success[row] === 0 && scored[row] === 1) failed.add(data.pairKey(row));
    const mask = new Uint8Array(data.loaded);
    for (let row = 0; row < data.loaded; row++)
      if (methods[row] === winner && success[row] === 1 && failed.has(data.pairKey(row))) mask[row] = 1;
    return mask;
  }

  /**
   * Apply a state to the rows that are there. `facets` count each word (truth, fault) under all other conditions.
   * @param {State} state @param {Uint8Array | null} found rows that the search found
   */
  function apply(state, found) {
    const n = data.loaded;
    const fails = new Uint8Array(n),
      which = new Uint8Array(n);
    /** @type {string[]} */
    const keys = [];
    const demand = (/** @type {string} */ key, /** @type {(row: number) => any} */ holds) => {
      const number = keys.push(key) - 1;
      for (let row = 0; row < n; row++)
        if (!holds(row)) {
          fails[row]++;
          which[row] = number;
        }
    };
    if (found) demand("q", (row) => found[row]);
    for (const [key, words] of Object.entries(state.words)) {
      const codes = new Uint8Array(data.meta.words[key].length);
      for (const word of words) if (data.meta.words[key].includes(word)) codes[data.meta.words[key].indexOf(word)] = 1;
      const column = data.columns[key];
      demand(key, (row) => codes[column[row]]);
    }
    for (const [key, , name] of TRUTHS)
      if (key in state.truths) {
        const column = data.columns[name],
          wanted = state.truths[key];
        demand(key, (row) => (wanted ? column[row] > 0 : !(column[row] > 0)));
      }
    for (const name of state.faults) {
      const column = data.columns[name];
      demand(`fault ${name}`, (row) => column[row] > 0);
    }
    for (const [key, [low, high]] of Object.entries(state.ranges)) {
      const column = data.columns[key];
      demand(key, (row) => column[row] >= (low ?? -Infinity) && column[row] <= (high ?? Infinity));
    }
    if (state.won && state.lost) {
      const mask = duel(state.won, state.lost);
      demand("duel", (row) => mask[row]);
    }
    let many = 0;
    for (let row = 0; row < n; row++) if (!fails[row]) many++;
    const rows = new Int32Array(many);
    for (let row = 0, place = 0; row < n; row++) if (!fails[row]) rows[place++] = row;
    return { rows: order(rows, state), facets: counts(fails, which, keys) };
  }

  /** @param {Uint8Array} fails @param {Uint8Array} which @param {string[]} keys */
  function counts(fails, which, keys) {
    /** @type {Record<string, any>} */
    const facets = {};
    const n = data.loaded;
    const free = (/** @type {number} */ row, /** @type {number} */ own) =>
      !fails[row] || (fails[row] === 1 && which[row] === own);
    const sum = (/** @type {string} */ key, /** @type {string} */ name, /** @type {any} */ sums) => {
      const own = keys.indexOf(key),
        column = data.columns[name],
        word = data.meta.kinds[name] === "word";
      for (let row = 0; row < n; row++) if (free(row, own)) sums[word ? column[row] : column[row] > 0 ? 1 : 0]++;
      return sums;
    };
    for (const [key] of FACETS) facets[key] = sum(key, key, new Uint32Array(data.meta.words[key].length));
    for (const [key, , name] of TRUTHS) facets[key] = sum(key, name, [0, 0]);
    for (const [name] of FAULTS) facets[`fault ${name}`] = sum(`fault ${name}`, name, [0, 0])[1];
    return facets;
  }

  /** @param {Int32Array} rows @param {State} state */
  function order(rows, state) {
    if (!state.sort) return state.down ? rows.reverse() : rows;
    if (state.sort === "task") {
      const direction = state.down ? -1 : 1;
      return rows.sort((a, b) =>
        data.tasks[a] < data.tasks[b] ? -direction : data.tasks[a] > data.tasks[b] ? direction : a - b,
      );
    }
    const column = data.columns[state.sort];
    const keys = new Float64Array(data.loaded);
    for (const row of rows) {
      const value = state.sort === "faults" ? faults(row) : column[row];
      keys[row] = Number.isNaN(value) ? Infinity : state.down ? -value : value; // what is not known comes last
    }
    return rows.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
  }

  /** A list with a value taken out where it is in it, else put in. @param {string[]} values @param {string} value */
  const toggled = (values, value) =>
    values.includes(value) ? values.filter((other) => other !== value) : [...values, value];

  /** Whether anything is asked for. @param {State} state */
  const idle = (state) => !write({ ...state, sort: "", down: false, columns: [] });

  sweetrl.filters = { FACETS, TRUTHS, FAULTS, RANGES, SORTS, read, write, apply, faults, toggled, idle };
})();
