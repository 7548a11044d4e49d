// Conditions in words: `reward < 1 and (questions >= 4 or method == "base")`, compiled to a function of a row.
// @ts-check
"use strict";

(() => {
  const { data } = sweetrl;
  const LONGEST = 500;
  const TOKEN = /\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)|"([^"]*)"|'([^']*)'|([A-Za-z_]\w*)|(<=|>=|==|!=|~=|[-+*/%^()<>,]))/y;
  /** @type {Record<string, (...values: number[]) => number>} */
  const FUNCTIONS = {
    min: Math.min,
    max: Math.max,
    abs: Math.abs,
    round: Math.round,
    floor: Math.floor,
    ceil: Math.ceil,
    sqrt: Math.sqrt,
    log: Math.log,
    log2: Math.log2,
    log10: Math.log10,
  };
  const ALIASES = { id: "task", epoch: "attempt", score: "reward" };
  const WORDS = ["and", "or", "not", "in", "mod", "true", "false"];

  /** The names that a condition may use. */
  const names = () => [...Object.keys(data.meta.kinds), "faults", "lost"];

  /** How the value of a name is read. @param {string} name @returns {(row: number) => any} */
  function reader(name) {
    const key = name in ALIASES ? ALIASES[/** @type {"id"} */ (name)] : name;
    if (key === "faults") return sweetrl.filters.faults;
    if (key === "lost") return (row) => data.word("outcome", row) === "lost";
    const kind = Object.hasOwn(data.meta.kinds, key) ? data.meta.kinds[key] : "";
    if (kind === "text") return (row) => data.tasks[row];
    if (kind === "word") return (row) => data.word(key, row);
    const column = data.columns[key];
    if (kind === "truth") return (row) => (column[row] < 0 ? NaN : column[row] === 1);
    if (kind === "number") return (row) => column[row];
    throw new Error(`There is no “${name}”; there are ${names().join(", ")}.`);
  }

  /** @param {any} value */
  const known = (value) => typeof value !== "number" || value === value;
  const number = (/** @type {any} */ value) => (typeof value === "string" ? NaN : Number(value));
  /** @param {any} a @param {any} b */
  const same = (a, b) => (typeof a === "string" || typeof b === "string" ? a === b : Number(a) === Number(b));
  /** Comparisons: what is not known is neither equal nor unequal, neither more nor less. @type {Record<string, (a: any, b: any) => boolean>} */
  const COMPARE = {
    "<": (a, b) => number(a) < number(b),
    "<=": (a, b) => number(a) <= number(b),
    ">": (a, b) => number(a) > number(b),
    ">=": (a, b) => number(a) >= number(b),
    "==": (a, b) => known(a) && known(b) && same(a, b),
    "!=": (a, b) => known(a) && known(b) && !same(a, b),
  };

  /** @param {string} text @returns {{kind: string, value: any}[]} */
  function tokens(text) {
    if (text.length > LONGEST) throw new Error(`A condition has at most ${LONGEST} characters.`);
    const found = [];
    TOKEN.lastIndex = 0;
    while (TOKEN.lastIndex < text.trimEnd().length) {
      const start = TOKEN.lastIndex;
      const hit = TOKEN.exec(text);
      if (!hit) throw new Error(`This cannot be read: “${text.slice(start).trim().slice(0, 20)}”.`);
      if (hit[1] !== undefined) found.push({ kind: "number", value: Number(hit[1]) });
      else if (hit[2] !== undefined || hit[3] !== undefined) found.push({ kind: "text", value: hit[2] ?? hit[3] });
      else if (hit[4] !== undefined) found.push({ kind: WORDS.includes(hit[4]) ? hit[4] : "name", value: hit[4] });
      else found.push({ kind: hit[5], value: hit[5] });
    }
    return found;
  }

  /**
   * Compile a condition; what is wrong with it is an Error with a sentence. It is read by hand: the page's policy has no
   * code from text.
   * @param {string} text @returns {(row: number) => boolean}
   */
  function compile(text) {
    const all = tokens(text);
    let place = 0;
    const peek = () => all[place]?.kind;
    const take = (/** @type {string[]} */ ...kinds) => (kinds.includes(peek()) ? all[place++] : null);
    const need = (/** @type {string} */ kind) => {
      const found = take(kind);
      if (!found) throw new Error(`“${kind}” is missing ${all[place] ? `before “${all[place].value}”` : "at the end"}.`);
      return found;
    };

    /** @returns {(row: number) => any} */
    function or() {
      const parts = [and()];
      while (take("or")) parts.push(and());
      return parts.length === 1 ? parts[0] : (row) => parts.some((part) => truth(part(row)));
    }
    /** @returns {(row: number) => any} */
    function and() {
      const parts = [not()];
      while (take("and")) parts.push(not());
      return parts.length === 1 ? parts[0] : (row) => parts.every((part) => truth(part(row)));
    }
    /** @returns {(row: number) => any} */
    function not() {
      if (!take("not")) return comparison();
      const part = not();
      return (row) => !truth(part(row));
    }
    /** @returns {(row: number) => any} */
    function comparison() {
      const first = sum();
      if (take("~=")) {
        const pattern = pattern_(need("text").value);
        return (row) => pattern.test(String(first(row)));
      }
      const negated = peek() === "not" && all[place + 1]?.kind === "in" ? take("not") : null;
      if (take("in")) {
        const choices = list();
        const within = (/** @type {number} */ row) => choices.some((one) => COMPARE["=="](first(row), one(row)));
        return negated ? (row) => known(first(row)) && !within(row) : within;
      }
      /** @type {[(a: any, b: any) => boolean, (row: number) => any, (row: number) => any][]} */
      const links = [];
      let left = first;
      for (let sign = take(...Object.keys(COMPARE)); sign; sign = take(...Object.keys(COMPARE))) {
        const right = sum();
        links.push([COMPARE[sign.value], left, right]);
        left = right;
      }
      return links.length ? (row) => links.every(([holds, a, b]) => holds(a(row), b(row))) : first;
    }
    function list() {
      need("(");
      const found = [or()];
      while (take(",")) found.push(or());
      need(")");
      return found;
    }
    /** @returns {(row: number) => any} */
    function sum() {
      let left = product();
      for (let sign = take("+", "-"); sign; sign = take("+", "-")) {
        const [a, b, minus] = [left, product(), sign.value === "-"];
        left = (row) => (minus ? number(a(row)) - number(b(row)) : number(a(row)) + number(b(row)));
      }
      return left;
    }
    /** @returns {(row: number) => any} */
    function product() {
      let left = power();
      for (let sign = take("*", "/", "%", "mod"); sign; sign = take("*", "/", "%", "mod")) {
        const [a, b, what] = [left, power(), sign.value];
        left = (row) => {
          const [one, other] = [number(a(row)), number(b(row))];
          return what === "*" ? one * other : what === "/" ? one / other : one % other;
        };
      }
      return left;
    }
    /** @returns {(row: number) => any} */
    function power() {
      if (take("-")) {
        const part = power();
        return (row) => -number(part(row));
      }
      const base = primary();
      if (!take("^")) return base;
      const exponent = power();
      return (row) => number(base(row)) ** number(exponent(row));
    }
    /** @returns {(row: number) => any} */
    function primary() {
      if (take("(")) {
        const found = or();
        need(")");
        return found;
      }
      const literal = take("number", "text");
      if (literal) return () => literal.value;
      const truthful = take("true", "false");
      if (truthful) return () => truthful.value === "true";
      const name = take("name")?.value;
      if (!name) throw new Error(`A name or a number is missing ${all[place] ? `before “${all[place].value}”` : "at the end"}.`);
      if (peek() !== "(") return reader(name);
      const parts = list();
      if (name === "is_nan" || name === "known") return (row) => known(parts[0](row)) === (name === "known");
      if (!Object.hasOwn(FUNCTIONS, name))
        throw new Error(
          `There is no function “${name}”; there are ${[...Object.keys(FUNCTIONS), "known", "is_nan"].join(", ")}.`,
        );
      return (row) => FUNCTIONS[name](...parts.map((part) => number(part(row))));
    }

    if (!all.length) throw new Error("A condition says something about a dialogue, as in `reward < 1`.");
    const found = or();
    if (place < all.length) throw new Error(`“${all[place].value}” is not expected there.`);
    return (row) => truth(found(row));
  }

  /** @param {string} text */
  function pattern_(text) {
    try {
      return new RegExp(text, "u");
    } catch {
      throw new Error(`“${text}” is no regular expression.`);
    }
  }

  /** @param {any} value */
  const truth = (value) => known(value) && Boolean(value);

  sweetrl.expression = { compile, names, FUNCTIONS };
})();
