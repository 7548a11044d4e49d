// All dialogues together, or those that the list shows: rates with intervals, faults, curves, and the critic.
// @ts-check
"use strict";

(() => {
  const { h, data, filters, list, charts, wilson, percent, count, signed } = sweetrl;
  const FEW = 5; // fewer dialogues than this are no point of a chart
  let measure = "success"; // the column that dialogues are compared by
  const named = () => data.measure(measure);
  const what = () => (measure === "success" ? "Share of dialogues solved." : "Mean over dialogues.");

  /** Draw the overview. @param {HTMLElement} main @param {URLSearchParams} search */
  async function show(main, search) {
    const state = filters.read(search);
    const asked = search.get("measure") || data.meta.measure;
    measure = data.columns[asked] ? asked : "success";
    const compare = (/** @type {string} */ key) =>
      sweetrl.go(`#/overview?${filters.write(state)}&measure=${encodeURIComponent(key)}`);
    const pick = sweetrl.select(data.meta.measures, measure, compare, { "aria-label": "Measure" });
    const found = state.q.trim() ? await data.search(state.q) : null;
    const all = filters.apply({ ...state, sort: "", down: false }, found).rows;
    const rows = [...all].filter((/** @type {number} */ row) => data.columns.scored[row] === 1);
    const stage = evaluated(rows);
    const idle = filters.idle(state);
    const few =
      stage.length === rows.length ? "" : `; comparisons of methods use the ${count(stage.length)} of evaluations`;
    const seeds = data.meta.words.seed.length > 2 ? ", training seeds together" : "";
    const about = `${count(rows.length)} scored dialogues${idle ? "" : " that the filters leave"}${few}. Intervals are ${measure === "success" ? "Wilson's" : "the normal ones"} at 95 %${seeds}${data.running().join("")}. `;
    const link = (/** @type {string} */ href, /** @type {string} */ words) => h("a", { href }, words);
    const links = idle
      ? link("#/dialogues", "Filter them in the list")
      : [link(`#/dialogues?${filters.write(state)}`, "The list"), " · ", link("#/overview", "All dialogues")];
    const report = data.meta.report ? [" · ", link("report.html", "The report")] : null;
    const lead = h("header", { class: "overviewhead" }, [
      h("h1", {}, "Overview"),
      data.meta.harm && h("p", { class: "bad" }, `Training hurt: ${data.meta.harm}.`),
      h("p", { class: "muted" }, about, links, report),
      sweetrl.labelled("Measure", pick),
    ]);
    const compared = () => [headline, byMethod, byTopic, byPersona, byQuestions].map((part) => part(stage));
    const more = () => [flow(rows, state), faultRates(stage), contrasts(), usage(), runs(), curves()];
    const none = h("p", { class: "empty" }, "No scored dialogue is like that.");
    const parts = rows.length ? [evaluation(), compared(), more()] : none;
    main.replaceChildren(h("div", { class: "overview" }, lead, h("div", { class: "charts" }, parts)));
  }

  /** Rows of evaluations, where there are any: a collection for training is no measurement. @param {number[]} rows */
  function evaluated(rows) {
    const some = rows.filter((row) => data.word("stage", row) === "evaluate");
    return some.length ? some : rows;
  }

  /** Rows by a key, in the order of their first. @param {Iterable<number>} rows @param {(row: number) => string} key @returns {Map<string, number[]>} */
  function groups(rows, key) {
    const found = new Map();
    for (const row of rows) {
      const name = key(row);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(row);
    }
    return found;
  }

  /** @param {number[]} rows */
  const rate = (rows) =>
    measure === "success"
      ? wilson(rows.filter((row) => data.columns.success[row] === 1).length, rows.length)
      : sweetrl.mean(rows.map((row) => data.columns[measure][row]).filter((value) => !Number.isNaN(value)));
  const method = (/** @type {number} */ row) => data.word("method", row);
  const topic = (/** @type {number} */ row) => data.word("topic", row);
  const temperature = (/** @type {number} */ row) => data.word("temperature", row);
  const persona = (/** @type {number} */ row) => data.word("persona", row);
  const fault = (/** @type {number} */ row) => data.word("first_fault", row);
  /** Rows that can be compared: the plain user, and of several temperatures the lowest. @param {number[]} rows */
  function comparable(rows) {
    const plain = rows.filter((row) => !persona(row));
    const lowest = [...groups(plain, temperature).keys()].sort(
      (a, b) => Number(a) - Number(b),
    )[0];
    return plain.filter((row) => temperature(row) === lowest);
  }

  /** Methods for a chart with room for `most`: the untrained agent, and the best of the others. @param {number[]} rows @param {number} most */
  function foremost(rows, most) {
    const all = [...groups(rows, method)].map(([name, some]) => ({ name, value: rate(some).value }));
    if (all.length <= most) return all.map((one) => one.name);
    const first = all.filter((one) => one.name === "base" || one.name === "zero-shot").slice(0, 1);
    const best = all.filter((one) => !first.includes(one)).sort((a, b) => b.value - a.value);
    return [...first, ...best.slice(0, most - first.length)].map((one) => one.name);
  }

  /** Which rows a chart is about, where it leaves some out. @param {number[]} rows @param {string[]} shown */
  function leftOut(rows, shown) {
    const lowest = temperature(rows[0]);
    const more = new Set(rows.map(method)).size - shown.length;
    return `${lowest ? `Temperature ${lowest}. ` : ""}${more > 0 ? `${sweetrl.plural(more, "more method")}: choose some in the list. ` : ""}`;
  }

  /** @param {any} one */
  const interval = (one) => [percent(one.value), percent(one.low), percent(one.high), count(one.n)];

  /** What the evaluation has measured, as its report says it. */
  function evaluation() {
    const known = data.meta.evaluated;
    if (!known.length) return null;
    const look = (/** @type {string} */ shows) => (shows === "worse" ? "bad" : shows === "better" ? "good" : "");
    const rows = known.map((/** @type {string[]} */ [label, ...rest]) => [
      label,
      ...rest.slice(0, -1),
      h("td", { class: look(rest[4]) }, rest[4]),
    ]);
    const heads = ["measure", "before", "after", "change in points", "p", "which is"];
    return h("section", { class: "card span" }, h("h2", {}, "The evaluation"), sweetrl.table(heads, rows));
  }

  /** Two methods on the same tasks: the change, and what became of each task. @param {number[]} rows */
  function headline(rows) {
    const methods = [...groups(rows, method).keys()];
    if (methods.length !== 2) return null;
    const [before, after] = methods;
    const first = new Map(
      rows.filter((row) => method(row) === before).map((row) => [data.pairKey(row), data.columns.success[row]]),
    );
    const kinds = { both: 0, won: 0, lost: 0, neither: 0 };
    for (const row of rows) {
      const old = first.get(data.pairKey(row));
      if (method(row) !== after || old === undefined) continue;
      const now = data.columns.success[row];
      kinds[now ? (old ? "both" : "won") : old ? "lost" : "neither"]++;
    }
    const total = kinds.both + kinds.won + kinds.lost + kinds.neither;
    if (!total) return null;
    const names = { both: "solved by both", won: `only by ${after}`, lost: `only by ${before}`, neither: "by neither" };
    const link = {
      won: `won=${encodeURIComponent(after)}&lost=${encodeURIComponent(before)}`,
      lost: `won=${encodeURIComponent(before)}&lost=${encodeURIComponent(after)}`,
      both: `method=${encodeURIComponent(after)}&success=yes`,
      neither: `method=${encodeURIComponent(after)}&success=no`,
    };
    const share = (/** @type {number} */ solved) => percent(solved / total);
    const points = signed((100 * (kinds.won - kinds.lost)) / total, 1);
    const about = `${count(total)} tasks that both attempted: ${share(kinds.both + kinds.lost)} before, ${share(kinds.both + kinds.won)} after, ${points} points.`;
    const stack = /** @type {(keyof typeof kinds)[]} */ (Object.keys(kinds))
      .filter((kind) => kinds[kind])
      .map((kind) => {
        const many = kinds[kind];
        const look = { class: many / total > 0.07 ? kind : `${kind} tiny`, style: { flex: `${many} 1 0` } };
        const href = `#/dialogues?${link[kind]}`;
        const title = `${names[kind]}: ${count(many)}`;
        return h("a", { ...look, href, title }, h("b", {}, count(many)), h("span", {}, names[kind]));
      });
    const head = [h("h2", {}, `${after} against ${before}`), h("p", { class: "muted" }, about)];
    return h("section", { class: "card span" }, head, h("div", { class: "stack" }, stack));
  }

  /** @param {number[]} rows */
  function byMethod(rows) {
    const plain = rows.filter((row) => !persona(row));
    const temperatures = [...groups(plain, temperature).keys()].sort();
    const shades = ["var(--tone-1)", "var(--tone-2)", "var(--tone-3)", "var(--tone-4)", "var(--tone-5)"];
    const color = (/** @type {string} */ temperature) => shades[temperatures.indexOf(temperature) % shades.length];
    const lines = [...groups(plain, method)].map(([name, some]) => ({
      name,
      label: h("a", { href: `#/dialogues?method=${encodeURIComponent(name)}` }, name),
      points: [...groups(some, temperature)]
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([temperature, these]) => ({
          ...rate(these),
          temperature,
          color: temperatures.length > 1 ? color(temperature) : list.tone(name),
          name: temperature ? `${name}, T=${temperature}` : name,
        }))
        .filter((one) => one.n),
    }));
    lines.sort((a, b) => (b.points[0] ? b.points[0].value : 0) - (a.points[0] ? a.points[0].value : 0));
    const shade = (/** @type {string} */ one) => ({ label: one ? `temperature ${one}` : "as set", color: color(one) });
    const key = temperatures.length > 1 ? temperatures.map(shade) : [];
    return dots(`${named()} by method`, what(), "method", key, lines);
  }

  /**
   * Rates as points with intervals.
   * @param {string} title @param {string} about @param {string} head what a row of its table is about
   * @param {any[]} key what its colours mean @param {any[]} lines
   */
  function dots(title, about, head, key, lines) {
    const table = lines.flatMap((line) =>
      line.points.map((/** @type {any} */ point) => [point.name, ...interval(point)]),
    );
    const value = head.startsWith("fault") ? "share" : named().toLowerCase();
    const drawing = [key.length ? charts.legend(key) : null, charts.dots(lines)];
    return charts.figure(title, about, drawing, [head, value, "low", "high", "dialogues"], table);
  }

  /** What the colours of methods mean. @param {string[]} methods */
  const colors = (methods) => methods.map((one) => ({ label: one, color: list.tone(one) }));

  /**
   * The rate of each method in some rows, as points; of a method without such rows there is none.
   * @param {number[]} rows @param {string[]} methods @param {string} name
   */
  function points(rows, methods, name) {
    const point = (/** @type {string} */ one) => {
      const own = rows.filter((row) => method(row) === one);
      return { ...rate(own), color: list.tone(one), name: `${name}, ${one}` };
    };
    return methods.map(point).filter((one) => one.n);
  }

  /** Success in each domain; which got worse stands last. @param {number[]} rows */
  function byTopic(rows) {
    rows = comparable(rows);
    const topics = groups(rows, topic);
    if (topics.size < 2) return null;
    const methods = foremost(rows, 4);
    const lines = [...topics].map(([name, some]) => {
      const found = points(some, methods, name);
      const change = found.length ? found[found.length - 1].value - (found.length > 1 ? found[0].value : 0) : 0;
      const held = some.some((row) => data.columns.held_out[row] === 1);
      const link = h("a", { href: `#/dialogues?topic=${encodeURIComponent(name)}` }, name);
      return { name, change, points: found, label: [link, held && h("small", { class: "tag" }, "held out")] };
    });
    lines.sort((a, b) => b.change - a.change);
    const two = methods.length === 2;
    const worse = lines.filter((one) => one.change < 0).map((one) => one.name);
    const about = two
      ? `From ${methods[0]} to ${methods[1]}, most gained first. ${worse.length ? `Worse: ${worse.join(", ")}.` : "No domain got worse."}`
      : `${leftOut(rows, methods)}${what()}`;
    return dots("By domain", about, "domain, method", colors(methods), lines);
  }

  /** @param {number[]} rows */
  function byPersona(rows) {
    const personas = groups(rows, persona);
    if (personas.size < 2) return null;
    const others = rows.filter(persona);
    const methods = foremost(others, 5);
    // The plain user at the temperatures that the others were measured at.
    const measured = new Set(others.map(temperature));
    const lines = [...personas].map(([name, some]) => {
      const these = some.filter((row) => measured.has(temperature(row)));
      return { label: name || "plain", points: points(these, methods, name || "plain") };
    });
    return dots("By user", "The same tasks with users of other habits.", "user, method", colors(methods), lines);
  }

  /** @param {number[]} rows */
  function byQuestions(rows) {
    rows = comparable(rows);
    const methods = foremost(rows, 5);
    const shown = rows.filter((row) => methods.includes(method(row)));
    const series = [...groups(shown, method)]
      .map(([name, some]) => ({
        label: name,
        color: list.tone(name),
        points: [...groups(some, (row) => String(data.columns.questions[row]))]
          .filter(([questions, these]) => questions !== "NaN" && these.length >= FEW)
          .map(([questions, these]) => ({ x: Number(questions), ...rate(these) }))
          .map((one) => ({ ...one, y: one.value }))
          .sort((a, b) => a.x - b.x),
      }))
      .filter((one) => one.points.length > 1);
    if (!series.length) return null;
    const table = series.flatMap((one) => one.points.map((point) => [`${one.label}, ${point.x}`, ...interval(point)]));
    const words = { x: "questions asked", share: measure === "success", name: "By questions asked" };
    return charts.figure(
      `${named()} against questions asked`,
      `${leftOut(rows, methods)}Points of fewer than ${FEW} dialogues are left out.`,
      charts.lines(series, words),
      ["method, questions", named().toLowerCase(), "low", "high", "dialogues"],
      table,
    );
  }

  // As the list calls them; a verdict on an answer is about the answer.
  const FAULT_NAMES = {
    ...Object.fromEntries(filters.FAULTS.map(([key, label]) => [key, label])),
    ...{ none: "no fault", mistaken: "mistaken answer", unclear: "unclear question" },
  };
  let chosen = "";

  /** From the first fault to the outcome. @param {number[]} all @param {any} state */
  function flow(all, state) {
    const rows = all.filter(fault);
    if (!rows.length) return null;
    const methods = [...groups(rows, method).keys()];
    if (!methods.includes(chosen)) chosen = methods.includes("trained") ? "trained" : methods[0];
    const place = h("div", {});
    const draw = () => {
      const some = rows.filter((row) => method(row) === chosen);
      const end = (/** @type {number} */ row) =>
        data.columns.success[row] === 1 ? "solved" : data.columns.reward[row] > 0 ? "partly" : "failed";
      const flows = [...groups(some, (row) => `${fault(row)}\n${end(row)}`)].map(([key, these]) => {
        const [from, to] = key.split("\n");
        return { from, to, many: these.length };
      });
      const sums = new Map();
      for (const one of flows) sums.set(one.from, (sums.get(one.from) || 0) + one.many);
      const left = [...sums.keys()].sort((a, b) => (a === "none" ? -1 : b === "none" ? 1 : sums.get(b) - sums.get(a)));
      const right = ["solved", "partly", "failed"].filter((one) => flows.some((each) => each.to === one));
      const tones = { solved: "var(--good)", partly: "var(--warn)", failed: "var(--bad)" };
      const address = (/** @type {string} */ from, /** @type {string} */ to) => {
        const truths = to === "solved" ? { success: true } : { success: false };
        const ranges = to === "partly" ? { reward: [0.0001, null] } : to === "failed" ? { reward: [null, 0] } : {};
        const words = { ...state.words, method: [chosen], first_fault: [from] };
        const asked = { truths: { ...state.truths, ...truths }, ranges: { ...state.ranges, ...ranges }, words };
        return `#/dialogues?${filters.write({ ...state, ...asked })}`;
      };
      const names = { ...FAULT_NAMES, partly: "partly right" };
      place.replaceChildren(charts.flow(flows, left, right, tones, names, address));
    };
    const turn = (/** @type {string} */ name) => ((chosen = name), draw());
    const options = methods.map((one) => [one, one]);
    const select = sweetrl.select(options, chosen, turn, { "aria-label": "Method" });
    draw();
    const named_ = (/** @type {string} */ key) => FAULT_NAMES[/** @type {"none"} */ (key)] || key;
    const table = [...groups(rows, method)].flatMap(([name, own]) =>
      [...groups(own, fault)].map(([key, these]) => [`${name}, ${named_(key)}`, ...interval(rate(these))]),
    );
    return charts.figure(
      "From the first fault to the outcome",
      "The first turn that was worth nothing, by the domain's judge. A stream leads to its dialogues.",
      [sweetrl.labelled("Method", select), place],
      ["method, first fault", named().toLowerCase(), "low", "high", "dialogues"],
      table,
    );
  }

  /** How many dialogues have each fault. @param {number[]} rows */
  function faultRates(rows) {
    const known = filters.FAULTS.filter(([key]) => rows.some((row) => data.columns[key][row] > 0));
    if (!known.length) return null;
    rows = comparable(rows);
    const names = foremost(rows, 4);
    const shown = rows.filter((row) => names.includes(method(row)));
    const methods = groups(shown, method);
    const lines = known.map(([key, label]) => ({
      label: h("a", { href: `#/dialogues?fault=${key}` }, label),
      points: [...methods]
        .map(([name, some]) => {
          const judged = some.filter((row) => !Number.isNaN(data.columns[key][row]));
          const hits = judged.filter((row) => data.columns[key][row] > 0).length;
          return { ...wilson(hits, judged.length), color: list.tone(name), name: `${label}, ${name}` };
        })
        .filter((one) => one.n),
    }));
    const about = `${leftOut(rows, names)}Share of dialogues with at least one.`;
    return dots("What goes wrong", about, "fault, method", colors([...methods.keys()]), lines);
  }

  /** How the critic tells kinds of replies apart. */
  function contrasts() {
    const known = data.meta.contrasts;
    if (!known.length) return null;
    const rankings = [...new Set(known.map((/** @type {any} */ one) => one.ranking))];
    const heads = ["better over worse", "", "in order", "pairs", "in words"];
    const rows = known.map((/** @type {any} */ one) => {
      const tone = one.share < 0.4 ? "bad" : one.share < 0.6 ? "open" : "";
      const meter = h("span", { class: `meter ${tone}`, style: { "--share": one.share } }, h("i"));
      return h("tr", {}, [
        rankings.length > 1 && h("td", { class: "muted" }, one.ranking),
        h("th", { scope: "row" }, `${one.better} over ${one.worse}`),
        h("td", {}, meter),
        h("td", { class: "n" }, percent(one.share, 0)),
        h("td", { class: "n" }, count(one.pairs)),
        h("td", { class: tone === "bad" ? "bad" : "" }, one.verdict),
      ]);
    });
    const last = h("a", { href: "#/dialogues?needed_last=yes" }, "Dialogues in which it ranked a needed question last");
    return card(
      "What the critic knows",
      "Pairs of sampled replies at one state whose worth is known: how often the better one has the higher advantage. 50 % is chance.",
      sweetrl.table(rankings.length > 1 ? ["ranking", ...heads] : heads, rows),
      h("p", {}, last),
    );
  }

  /** What the dialogues have cost, by stage and method. */
  function usage() {
    const known = data.meta.usage || [];
    if (!known.length) return null;
    const heads = ["stage", "dialogues", "read", "of it cached", "written", "s each", "engine, s"];
    const rows = known.map((/** @type {any} */ one) => [
      [one.stage, one.method].filter(Boolean).join(", "),
      count(one.dialogues),
      count(one.prompt_tokens),
      one.prompt_tokens ? percent(one.cached_tokens / one.prompt_tokens, 0) : "",
      count(one.generated_tokens),
      (one.seconds / one.dialogues).toFixed(1),
      one.busy_seconds.toFixed(0),
    ]);
    const about = "The agent's tokens and time, as the runs have noted them.";
    return card("What it has cost", about, sweetrl.table(heads, rows));
  }

  /** The runs that made what lies here. */
  function runs() {
    const known = data.meta.runs || [];
    if (!known.length) return null;
    const rows = known.map((/** @type {any} */ one) => [
      one.stage,
      h("td", { class: "mono" }, one.run_id.slice(0, 8)),
      h("td", {}, one.status.toLowerCase()),
      h("td", { class: "mono" }, one.commit.slice(0, 8)),
      one.seconds === null ? "" : `${one.seconds.toFixed(1)} s`,
    ]);
    const parameters = sweetrl.parts.facts(Object.entries(data.meta.parameters));
    const table = sweetrl.table(["stage", "run", "status", "commit", "time"], rows);
    return card("The runs", "", table, h("details", {}, h("summary", {}, "Parameters"), parameters));
  }

  /** @param {string} title @param {string} about @param {...any} children */
  function card(title, about, ...children) {
    const head = [h("h2", {}, title), about && h("p", { class: "muted" }, about)];
    return h("section", { class: "card chart" }, head, children);
  }

  function curves() {
    return data.meta.curves.map((/** @type {any} */ one) => {
      const points = one.points.map((/** @type {number[]} */ [x, y]) => ({ x, y }));
      const title = `${one.stage}: ${one.label}`;
      const about = points.length > 60 ? "Each step, and the mean of those around it." : "";
      const series = [{ label: one.label, color: "var(--tone-1)", points }];
      const drawing = charts.lines(series, { x: "step", name: `${title} by step` });
      const some = points.filter((/** @type {any} */ _, /** @type {number} */ place) => place % 20 === 0);
      const rows = some.map((/** @type {any} */ { x, y }) => [x, sweetrl.number(y)]);
      return charts.figure(title, about, drawing, ["step", one.label], rows);
    });
  }

  sweetrl.overview = { show };
})();
