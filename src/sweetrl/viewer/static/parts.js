// Pieces that several pages show: bars of advantages, messages, candidates, verdicts of tests.
// @ts-check
"use strict";

(() => {
  const { h, icon, folded, verbatim, signed, plural } = sweetrl;

  /** A bar left or right of zero; one that is longer than the scale says so by its end. @param {number} value @param {number} scale */
  function bar(value, scale) {
    const style = { "--share": Math.min(1, Math.abs(value) / (scale || 1)) };
    const look = `bar ${value < 0 ? "minus" : "plus"}${Math.abs(value) > scale ? " beyond" : ""}`;
    return h("span", { class: look, style, "aria-hidden": "true" }, h("i", {}));
  }

  /** The advantage at which bars of a dialogue are full: one far outlier must not flatten the others. @param {any} dialogue */
  function scaleOf(dialogue) {
    /** @type {number[]} */
    const values = [];
    for (const turn of dialogue.turns || [])
      for (const state of Object.values(turn.rankings))
        for (const one of /** @type {any} */ (state).candidates)
          if (one.advantage !== null) values.push(Math.abs(one.advantage));
    values.sort((a, b) => a - b);
    return values[Math.min(values.length - 1, Math.floor(values.length * 0.92))] || 1;
  }

  /** @param {string} verdict @param {boolean} fault */
  function verdictTag(verdict, fault) {
    const look = fault ? "bad" : verdict === "needed" || verdict === "complete" ? "good" : "";
    return verdict ? h("span", { class: `tag verdict ${look}` }, verdict) : null;
  }

  /** A message's words and programs. @param {[string, string][]} pieces @param {string[]} [marks] words to be marked */
  function pieces(pieces, marks = []) {
    return pieces.map(([language, text]) =>
      language ? sweetrl.code(text, language) : h("p", { class: "words" }, marked(text, marks)),
    );
  }

  /** Text with the words that were searched for marked. @param {string} text @param {string[]} marks */
  function marked(text, marks) {
    if (!marks.length) return text;
    const small = text.toLowerCase();
    if (small.length !== text.length) return text; // letters that change their length: places would not fit
    const found = [];
    let last = 0;
    for (let place = 0; place < text.length; place++) {
      const hit = marks.find((mark) => small.startsWith(mark, place));
      if (!hit) continue;
      found.push(text.slice(last, place), h("mark", {}, text.slice(place, place + hit.length)));
      last = place + hit.length;
      place = last - 1;
    }
    return [...found, text.slice(last)];
  }

  /** What a model thought before it spoke, folded. @param {string | null} words */
  const thoughts = (words) => (words ? folded("Thoughts", verbatim(words)) : null);

  /** What else was sampled at a turn, best first, and the pairs made of it. @param {any} state @param {number} scale */
  function candidates(state, scale) {
    const all = state.candidates;
    const samples = all.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.count, 0);
    const rows = all.map((/** @type {any} */ one, /** @type {number} */ place) => {
      const { advantage, text } = one;
      const begin = `${text.split("\n").find((/** @type {string} */ line) => line.trim()) || ""} …`;
      const long = text.length > 220 || text.includes("\n");
      const words = long ? h("details", {}, h("summary", {}, begin), verbatim(text)) : text;
      const tokens = one.heat && h("details", {}, h("summary", {}, "Tokens by the critic"), heat(one.heat));
      const figure = advantage !== null && [bar(advantage, scale), h("span", { class: "figure" }, signed(advantage))];
      const better = { class: "n good", title: "pairs in which it is the better one" };
      const worse = { class: "n bad", title: "pairs in which it is the worse one" };
      return h("tr", { class: one.said ? "said" : "" }, [
        h("td", { class: "n" }, place + 1),
        h("td", { class: "adv" }, figure),
        h("td", { class: "n" }, `×${one.count}`),
        h("td", {}, verdictTag(one.verdict, one.fault) || one.kind, one.said && h("span", { class: "tag" }, "said")),
        h("td", { class: "reply" }, thoughts(one.thoughts), words, tokens),
        h("td", better, one.chosen ? `+${one.chosen}` : ""),
        h("td", worse, one.rejected ? `−${one.rejected}` : ""),
      ]);
    });
    const heads = ["#", "advantage", "count", "kind", "reply", "chosen", "rejected"];
    const table = sweetrl.table(heads, rows, { class: "candidates" }, "Sampled replies at this turn, best first");
    const made = state.pairs.map((/** @type {any[]} */ [good, bad, margin]) =>
      h("span", { class: "pair", title: margin !== null && `margin ${margin.toFixed(3)}` }, `${good + 1} over ${bad + 1}`),
    );
    const pairs = made.length > 0 && h("p", { class: "pairs" }, h("span", { class: "muted" }, "Pairs: "), made);
    const pairsSaid = made.length ? `, ${plural(made.length, "pair")}` : "";
    const missed =
      all[all.length - 1]?.verdict === "needed" &&
      all.some((/** @type {any} */ one) => one.verdict !== "needed") &&
      h("span", { class: "tag bad" }, "a needed question is last");
    const title = `${plural(all.length, "distinct reply", "distinct replies")} of ${samples} sampled${pairsSaid} `;
    return folded([title, missed], table, pairs);
  }

  /** Tokens coloured by how much likelier the critic finds them than the reference; null of one that has diverged. @param {[string, number | null][]} tokens */
  function heat(tokens) {
    const most = Math.max(0.05, ...tokens.map(([, ratio]) => Math.abs(ratio ?? 0)));
    const spans = tokens.map(([text, ratio]) => {
      const style = { "--share": Math.sqrt(Math.abs(ratio ?? 0) / most).toFixed(3) };
      const title = ratio === null ? "no number" : `${signed(ratio)} nats`;
      const look = { class: (ratio ?? 0) < 0 ? "minus" : "plus", style, title };
      return h("span", look, text.replace(/\n/g, "⏎\n"));
    });
    return h("p", { class: "heat" }, spans);
  }

  /** How something went, as a sign. @param {"yes" | "no" | "lost"} how @param {string} words */
  function mark(how, words) {
    return h("span", { class: `mark ${how}`, role: "img", "aria-label": words }, icon(how));
  }

  /** The verdicts on the hidden tests; `runs` are the same tests run again, with all values. @param {any} dialogue @param {any[] | null} runs */
  function tests(dialogue, runs) {
    const known = runs || dialogue.tests;
    if (!known.length) return null;
    const mono = (/** @type {string} */ text) => h("td", { class: "mono" }, text);
    const rows = known.map((/** @type {any} */ one) => {
      const why = () => (one.passed ? "" : [one.reason.replaceAll("_", " "), one.detail && `: ${one.detail}`]);
      const time = () => h("td", { class: "n" }, `${(1000 * one.seconds).toFixed(1)} ms`);
      return h("tr", { class: one.passed ? "" : "failed" }, [
        h("td", {}, mark(one.passed ? "yes" : "no", one.passed ? "passed" : "failed")),
        mono(one.call || one.name),
        runs ? [mono(one.expected), mono(one.got), time()] : h("td", {}, why()),
      ]);
    });
    const heads = runs ? ["", "input", "expected", "got", "time"] : ["", "input", "verdict"];
    return sweetrl.table(heads, rows, { class: "tests" });
  }

  /** Small squares, one for each hidden test. @param {any[]} tests */
  function squares(tests) {
    const label = `${tests.filter((one) => one.passed).length} of ${tests.length} hidden tests passed`;
    const each = tests.map((one) => h("i", { class: one.passed ? "yes" : "no", title: `${one.name}: ${one.reason}` }));
    return h("span", { class: "squares", role: "img", "aria-label": label }, each);
  }

  /** A table of facts. @param {[string, any][]} rows */
  function facts(rows) {
    const known = rows.filter(([, value]) => value !== "" && value !== null && value !== undefined);
    const lines = known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    return h("dl", { class: "facts" }, lines);
  }

  /** A button that computes something and shows it in place of itself. @param {string} label @param {keyof any} picture @param {() => Promise<any>} work */
  function onDemand(label, picture, work) {
    const run = async () => {
      button.disabled = true;
      button.classList.add("busy");
      try {
        await work();
      } catch (error) {
        sweetrl.toast(/** @type {Error} */ (error).message);
      }
      button.disabled = false;
      button.classList.remove("busy");
    };
    const button = sweetrl.button([icon(picture), label], run, { class: "button small" });
    return button;
  }

  sweetrl.parts = { bar, scaleOf, verdictTag, pieces, thoughts, candidates, heat, tests, mark, squares, facts, onDemand };
})();
