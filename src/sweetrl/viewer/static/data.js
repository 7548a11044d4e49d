// The table of dialogues in the browser: columns of numbers and codes, filled part by part. The words stay where they
// are (at the server, or in files beside the page) until somebody searches or opens a dialogue.
// @ts-check
"use strict";

(() => {
  /** @type {Record<string, any>} */
  const given = {}; // what scripts of an exported folder have handed over
  /** @type {Record<string, Promise<any>>} */
  const asked = {};

  /** Scripts of an exported folder call this. @param {string} name @param {any} value */
  sweetrl.take = (name, value) => {
    given[name] = value;
  };

  /** One file of an exported folder; a page from a disk may load scripts, but may not fetch. @param {string} name */
  function script(name) {
    asked[name] ??= new Promise((resolve, reject) => {
      const element = document.createElement("script");
      element.src = `data/${name}.js`;
      element.onload = () => resolve(given[name]);
      element.onerror = () => reject(new Error(`data/${name}.js is missing; export the folder again.`));
      document.head.append(element);
    });
    return asked[name]; // who wants it again gets the same
  }

  /** Ask the server. @param {string} path @param {any} [body] sent with POST where it is given */
  async function ask(path, body) {
    const options =
      body === undefined
        ? {}
        : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let response;
    try {
      response = await fetch(`api/${path}`, options);
    } catch {
      throw new Error("The viewer does not answer; start `sweetrl view` again.");
    }
    const value = await response.json().catch(() => ({ error: `The viewer answered ${response.status}.` }));
    const refused = "The viewer refused that; check what you entered.";
    if (!response.ok) throw new Error(typeof value.error === "string" ? value.error : refused);
    return value;
  }

  /** @type {any} */
  const data = {
    /** @type {any} */ meta: null,
    loaded: 0, // rows that are there
    /** @type {Record<string, any>} */ columns: {},
    /** @type {string[]} */ tasks: [],
    /** @type {Set<() => void>} */ listeners: new Set(),
  };

  /** Read what the page must know before the first rows. */
  data.begin = async () => {
    data.meta = given.meta || (await ask("meta"));
    const { kinds, count } = data.meta;
    for (const [name, kind] of Object.entries(kinds)) {
      if (kind === "word") data.columns[name] = new Uint32Array(count);
      else if (kind === "number") data.columns[name] = new Float64Array(count).fill(NaN);
      else if (kind === "truth") data.columns[name] = new Int8Array(count).fill(-1);
    }
    data.tasks = new Array(count);
    data.label(data.meta.labels || {});
  };

  /** @type {Map<number, string>} */
  data.notes = new Map();

  /** Take what people have said of rows: reward and note. @param {Record<string, [number | null, string]>} said */
  data.label = (said) => {
    for (const [row, [reward, note]] of Object.entries(said)) {
      data.columns.label[row] = reward ?? NaN;
      data.notes.set(Number(row), note);
    }
    found.query = ""; // notes are searched, too
  };

  /** What stages that run now have made so far, in words. */
  data.running = () =>
    data.meta.running.map(
      (/** @type {any} */ one) => `. ${one.source}: running, ${one.dialogues} of ${one.of} dialogues so far`,
    );

  /** Read all parts of the table, the first one first; `step` is called after each. @param {() => void} step */
  data.load = async (step) => {
    const parts = Math.ceil(data.meta.count / data.meta.shard);
    for (let part = 0; part < parts; part++) {
      put(part * data.meta.shard, await (data.meta.server ? ask(`rows/${part}`) : script(`rows-${part}`)));
      step();
    }
  };

  /** @param {number} first @param {any} rows */
  function put(first, rows) {
    const many = rows.task.length;
    for (const [name, kind] of Object.entries(data.meta.kinds)) {
      const values = rows[name];
      if (kind === "text") for (let i = 0; i < many; i++) data.tasks[first + i] = values[i];
      else {
        const column = data.columns[name];
        for (let i = 0; i < many; i++) if (values[i] !== null) column[first + i] = values[i];
      }
    }
    data.loaded = first + many;
  }

  /** The word of a row in a column of words. @param {string} name @param {number} row */
  data.word = (name, row) => data.meta.words[name][data.columns[name][row]];

  /** What the domain calls a measure. @param {string} key @returns {string} */
  data.measure = (key) => data.meta.measures.find((/** @type {string[]} */ [one]) => one === key)[1];

  /** The row at an address; -1 where there is none. @param {string} source @param {string} task @param {number} attempt */
  data.find = (source, task, attempt) => {
    const code = data.meta.words.source.indexOf(source);
    const { source: sources, attempt: attempts } = data.columns;
    for (let row = 0; row < data.loaded; row++)
      if (data.tasks[row] === task && sources[row] === code && attempts[row] === attempt) return row;
    return -1;
  };

  // Rows by task, and what makes two of them comparable as one number: made once, when something asks for it.
  const COMPARED = ["seed", "temperature", "persona", "round", "stage"];
  /** @type {{loaded: number, tasks: Map<string, number>, rows: number[][], pairs: Float64Array}} */
  let index = { loaded: -1, tasks: new Map(), rows: [], pairs: new Float64Array(0) };
  function indexed() {
    if (index.loaded === data.loaded) return index;
    /** @type {Map<string, number>} */
    const tasks = new Map();
    /** @type {number[][]} */
    const rows = [];
    const pairs = new Float64Array(data.loaded);
    let attempts = 1;
    for (let row = 0; row < data.loaded; row++) attempts = Math.max(attempts, 1 + (data.columns.attempt[row] || 0));
    const columns = COMPARED.map((name) => [data.columns[name], data.meta.words[name].length]);
    for (let row = 0; row < data.loaded; row++) {
      let task = tasks.get(data.tasks[row]);
      if (task === undefined) {
        task = rows.length;
        tasks.set(data.tasks[row], task);
        rows.push([]);
      }
      rows[task].push(row);
      let key = task * attempts + (data.columns.attempt[row] || 0);
      for (const [column, many] of columns) key = key * many + column[row];
      pairs[row] = key;
    }
    return (index = { loaded: data.loaded, tasks, rows, pairs });
  }

  /** The other rows about the same task. @param {number} row @returns {number[]} */
  data.related = (row) => {
    const { tasks, rows } = indexed();
    return rows[/** @type {number} */ (tasks.get(data.tasks[row]))].filter((other) => other !== row);
  };

  /** What must be equal so that two dialogues can be compared: all but who acted. @param {number} row @returns {number} */
  data.pairKey = (row) => indexed().pairs[row];

  /** The terms of a query, as the server has them: words, and what stands in quotes. @param {string} query */
  data.terms = (query) => {
    const parts = query.toLowerCase().split('"');
    return parts.flatMap((part, place) => (place % 2 ? [part] : part.split(/\s+/))).filter((term) => term.trim());
  };

  /** @type {{query: string, mask: Uint8Array | null}} */
  let found = { query: "", mask: null };

  /** Rows whose words hold a query: a mask, from the last search if it was the same. @param {string} query */
  data.search = async (query) => {
    if (found.query === query && found.mask) return found.mask;
    const mask = new Uint8Array(data.meta.count);
    const wanted = data.terms(query);
    for (const [row, note] of data.notes)
      if (wanted.every((/** @type {string} */ term) => note.toLowerCase().includes(term))) mask[row] = 1;
    if (data.meta.server) for (const row of (await ask(`search?q=${encodeURIComponent(query)}`)).rows) mask[row] = 1;
    else {
      const each = data.meta.words_shard;
      for (let part = 0; part * each < data.meta.count; part++) {
        const words = await script(`words-${part}`);
        for (let i = 0; i < words.length; i++)
          if (wanted.every((/** @type {string} */ term) => words[i].includes(term))) mask[part * each + i] = 1;
      }
    }
    found = { query, mask };
    return mask;
  };

  /** @type {Map<number, any>} */
  const kept = new Map();

  /** One whole dialogue; who asks while it is on its way gets the same. @param {number} row @returns {Promise<any>} */
  data.dialogue = (row) => {
    let found = kept.get(row);
    if (!found) {
      found = read(row);
      kept.set(row, found);
      found.catch(() => kept.delete(row));
      if (kept.size > 60) kept.delete(kept.keys().next().value ?? -1);
    }
    return found;
  };

  /** @param {number} row */
  async function read(row) {
    if (data.meta.server) return ask(`dialogue/${row}`);
    const each = data.meta.dialogues_shard;
    return (await script(`dialogues-${Math.floor(row / each)}`))[row % each];
  }

  /**
   * What is computed when it is asked for: `run` (tests), `heat` (tokens), `prompts`, `pictures` (pages). In an
   * exported folder it is there for a sample.
   * @param {any} dialogue @param {"run" | "heat" | "prompts" | "pictures"} what
   */
  data.compute = async (dialogue, what) => {
    dialogue.computed = dialogue.computed || {};
    if (!dialogue.computed[what]) dialogue.computed[what] = await ask(`dialogue/${dialogue.row}/${what}`, {});
    return dialogue.computed[what];
  };

  /** Whether that can be had. @param {any} dialogue @param {"run" | "heat" | "prompts" | "pictures"} what */
  data.computable = (dialogue, what) =>
    Boolean((dialogue.computed && dialogue.computed[what]) || (data.meta.server && dialogue.row >= 0));

  data.ask = ask;
  sweetrl.data = data;
})();
