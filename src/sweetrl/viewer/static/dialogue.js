// One dialogue, or two about the same task side by side.
// @ts-check
"use strict";

(() => {
  const { h, icon, folded, verbatim, button, data, list, parts, plural, signed } = sweetrl;
  const { SPEAKERS } = sweetrl.files;
  const ENDS = {
    answered: "answered",
    max_turns_reached: "last turn reached",
    user_left: "the user left",
    lost: "lost",
  };

  /** @param {string} text */
  const at = (text) => {
    const [source, task, attempt] = text.split("/").map(decodeURIComponent);
    return data.find(source, task, Number(attempt));
  };

  /** Draw the page of a dialogue. @param {HTMLElement} main @param {string} path @param {URLSearchParams} search */
  async function show(main, path, search) {
    const beside = search.get("with") || "";
    const row = at(path),
      other = beside ? at(beside) : -1;
    const reading = data.loaded < data.meta.count;
    if (row < 0 || (reading && beside && other < 0)) {
      if (reading) data.listeners.add(sweetrl.route);
      const words = reading ? "Reading …" : "There is no such dialogue here. ";
      main.replaceChildren(h("p", { class: "empty" }, words, h("a", { href: "#/dialogues" }, "All dialogues")));
      return;
    }
    const rows = other >= 0 ? [row, other] : [row];
    main.setAttribute("aria-busy", "true");
    const dialogues = await Promise.all(rows.map((one) => data.dialogue(one))).finally(() =>
      main.removeAttribute("aria-busy"),
    );
    if (!location.hash.startsWith(`#/dialogue/${path}`)) return; // somebody has gone on
    const first = dialogues[0];
    let head = top(row, other, first);
    data.listeners.add(() => {
      if (data.loaded < data.meta.count || !head.isConnected) return;
      const whole = top(row, other, first); // with all other dialogues about the task
      head.replaceWith(whole);
      head = whole;
    });
    const sides = dialogues.map((one, place) => side(one, rows[place], other >= 0));
    const kind = `dialoguepage${other >= 0 ? " two" : ""}`;
    main.replaceChildren(
      h("article", { class: kind }, head, first.task.request && request(first), h("div", { class: "sides" }, sides)),
    );
    document.title = `${first.task.id} · sweetrl`;
    if (search.has("turn")) goTo(Number(search.get("turn")));
  }

  const turnsShown = () =>
    /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".side:first-child .message.assistant")]);

  /** Show a turn of the (first) dialogue. @param {number} turn from 1 on */
  function goTo(turn) {
    const found = turnsShown()[turn - 1];
    found?.focus({ preventScroll: true });
    found?.scrollIntoView({ block: "center" });
  }

  /** Go to the turn that lies so many behind the one with the focus. @param {number} by */
  function step(by) {
    const all = turnsShown();
    const here = all.indexOf(/** @type {any} */ (document.activeElement?.closest(".message.assistant")));
    goTo(1 + Math.min(all.length - 1, Math.max(0, here + by)));
  }

  /** The link of a turn: it goes there without drawing the page again, and can be copied. @param {number} turn from 1 on @param {string} words @param {Record<string, any>} [more] */
  function turnLink(turn, words, more = {}) {
    const [path, query] = location.hash.split("?");
    const search = new URLSearchParams(query || "");
    search.set("turn", String(turn));
    const onclick = (/** @type {any} */ event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.replaceState(null, "", `${path}?${search}`);
      goTo(turn);
    };
    return h("a", { href: `${path}?${search}`, onclick, ...more }, words);
  }

  /** The turns as links, with what each was worth. @param {any} dialogue */
  function outline(dialogue) {
    if (dialogue.turns.length < 2) return null;
    const links = dialogue.turns.map((/** @type {any} */ turn, /** @type {number} */ place) => {
      const look = `tag ${turn.verdict && (turn.fault ? "bad" : "good")}`;
      const label = `Turn ${place + 1}${turn.verdict ? `: ${turn.verdict}` : ""}`;
      return turnLink(place + 1, String(place + 1), { class: look, "aria-label": label, title: turn.verdict });
    });
    return h("nav", { class: "outline", "aria-label": "Turns" }, links);
  }

  /** @param {number} row @param {number} other @param {any} dialogue */
  function top(row, other, dialogue) {
    const comparable = (/** @type {number} */ one) => Number(data.pairKey(one) === data.pairKey(row));
    const related = data.related(row).sort((a, b) => comparable(b) - comparable(a) || a - b);
    const name = (/** @type {number} */ one) => {
      const attempt = data.columns.attempt[one] ? `attempt ${data.columns.attempt[one]}` : "";
      return [data.word("method", one), attempt, ...list.how(one), list.said(one)].filter(Boolean).join(" · ");
    };
    const nothing = ["", related.length ? "nothing" : "no other dialogue about this task"];
    const compare = sweetrl.select(
      [nothing, ...related.map((one) => [String(one), name(one)])],
      String(other),
      (/** @type {string} */ chosen) => sweetrl.go(list.address(row, chosen ? Number(chosen) : undefined)),
      { id: "compare", "aria-label": "Side by side with", disabled: !related.length },
    );
    const place = list.rows.indexOf(row);
    const step = (/** @type {number} */ by, /** @type {string} */ label, /** @type {any} */ picture) => {
      const next = place >= 0 ? list.rows[place + by] : undefined;
      if (next === undefined) return h("span", { class: "button quiet off", "aria-hidden": "true" }, icon(picture));
      const id = by > 0 ? "next" : "previous";
      const named = { "aria-label": label, title: label, id };
      return h("a", { class: "button quiet", href: list.address(next), ...named }, icon(picture));
    };
    const back = {
      class: "button quiet",
      id: "back",
      href: `#/dialogues?${sweetrl.filters.write(list.state)}`,
      onclick: () => (list.restore = true),
    };
    const held = data.columns.held_out[row] === 1 ? "held-out domain" : "";
    const about = [data.word("topic", row), held, dialogue.task.domain].filter(Boolean).join(" · ");
    const where = h("span", { class: "muted" }, place >= 0 ? `${place + 1} of ${list.rows.length}` : "");
    return h("header", { class: "pagehead" }, [
      h("a", back, icon("back"), "List"),
      h("div", { class: "title" }, h("h1", {}, dialogue.task.id), h("p", { class: "muted" }, about)),
      h("label", { class: "compare" }, h("span", {}, "Side by side with"), compare),
      h("div", { class: "steps" }, where, step(-1, "The one before (k)", "back"), step(1, "The next one (j)", "next")),
    ]);
  }

  /** @param {any} dialogue */
  function request(dialogue) {
    const { task } = dialogue;
    const { hidden, reference } = task;
    const shown = () => (reference.length < 20000 ? sweetrl.code(reference, task.syntax) : verbatim(reference));
    return h("section", { class: "card request", "aria-label": "The task" }, [
      h("h2", {}, "The user asks"),
      h("p", { class: "words" }, task.request),
      h("details", {}, [
        h("summary", {}, "What only the user knows"),
        hidden && hidden !== reference && [h("h3", {}, "Hidden information"), verbatim(hidden)],
        reference && [h("h3", {}, "Reference"), shown()],
      ]),
    ]);
  }

  /** One dialogue with its result. @param {any} dialogue @param {number} row @param {boolean} beside */
  function side(dialogue, row, beside) {
    const method = data.word("method", row);
    const attempt = data.columns.attempt[row];
    const reward = data.columns.reward[row];
    const tests = dialogue.tests || [];
    const passed = tests.filter((/** @type {any} */ one) => one.passed).length;
    const dot = h("span", { class: "dot", style: { "--tone": list.tone(method) } });
    const scored = tests.length
      ? [parts.squares(tests), h("span", { class: "muted" }, `${passed} of ${tests.length} tests`)]
      : !Number.isNaN(reward) && h("span", { class: "muted" }, `${data.measure("reward")} ${reward.toFixed(2)}`);
    const head = h("header", { class: "sidehead" }, [
      h("h2", {}, dot, method, attempt ? h("small", {}, ` attempt ${attempt}`) : ""),
      h("span", { class: `verdict pill ${list.outcome(row)}` }, list.said(row)),
      scored,
    ]);
    if (!dialogue.messages) {
      const words = h("p", { class: "card" }, "Only the numbers of this dialogue are kept, not its words.");
      return h("section", { class: "side" }, head, words, h("div", { class: "card" }, numbers(row)));
    }
    const chat = conversation(dialogue);
    const left = h("div", { class: "chat" }, beside ? null : outline(dialogue), chat);
    const columns = h("div", { class: "columns" }, left, h("div", { class: "about" }, about(dialogue, row, chat)));
    return h("section", { class: "side", "aria-label": `Dialogue by ${method}` }, head, columns);
  }

  /** Where a reader says what a dialogue was worth, and why. @param {number} row */
  function labelling(row) {
    const said = () => ({
      reward: Number.isNaN(data.columns.label[row]) ? null : data.columns.label[row],
      note: data.notes.get(row) || "",
    });
    const look = { type: "number", step: "any", placeholder: "reward", "aria-label": "Label, a reward" };
    const reward = h("input", { ...look, value: said().reward ?? "" });
    const note = { rows: 2, maxlength: data.meta.longest_note, placeholder: "note", "aria-label": "Note" };
    const words = h("textarea", { ...note, value: said().note });
    const give = (/** @type {string} */ label, /** @type {string} */ value) =>
      button(label, () => (reward.value = value), { class: "button small" });
    const save = parts.onDemand("Save", "yes", async () => {
      const now = { reward: reward.value === "" ? null : Number(reward.value), note: words.value, before: said() };
      data.label(await data.ask(`label/${row}`, now));
      sweetrl.toast("Kept in data/labels/");
    });
    const use = h("p", { class: "muted" }, "Imports take it as the reward, but for validation and test tasks.");
    const buttons = h("div", { class: "buttons" }, reward, give("Good", "1"), give("Bad", "0"), give("None", ""));
    return h("section", { class: "card label" }, h("h3", {}, "Label"), buttons, words, use, save);
  }

  /** The messages after the request, as a chat. @param {any} dialogue */
  function conversation(dialogue) {
    const turns = new Map();
    for (const [number, one] of dialogue.turns.entries()) turns.set(one.message, { ...one, number });
    const scale = parts.scaleOf(dialogue);
    const marks = data.terms(list.state.q || "");
    const copyLook = { class: "button quiet copyone", "aria-label": "Copy this message", title: "Copy this message" };
    const chat = h("ol", { class: "messages", "aria-label": "Dialogue" });
    dialogue.messages.forEach((/** @type {any} */ message, /** @type {number} */ index) => {
      if (index === 0) return;
      const turn = turns.get(index);
      const look = `message ${message.role}${turn && turn.fault ? " fault" : ""}`;
      const who = h("div", { class: "who" }, [
        SPEAKERS[/** @type {"user"} */ (message.role)],
        turn && [h("span", { class: "muted" }, ` turn ${turn.number + 1}`), parts.verdictTag(turn.verdict, turn.fault)],
        button(icon("copy"), () => sweetrl.copy(sweetrl.files.said(message), "Message"), copyLook),
      ]);
      const line = h("li", { class: look, id: `m${dialogue.row}-${index}`, tabindex: "-1" }, [
        who,
        turn && [prompt(turn, dialogue), parts.thoughts(turn.thoughts)],
        h("div", { class: "bubble" }, parts.pieces(message.pieces, marks)),
        turn && below(turn, scale),
      ]);
      chat.append(line);
    });
    if (dialogue.error)
      chat.append(h("li", { class: "message system" }, h("div", { class: "bubble" }, `Lost: ${dialogue.error}`)));
    return chat;
  }

  /** The prompt of a turn as it was sent; what is new in it is read when it is opened. @param {any} turn @param {any} dialogue */
  function prompt(turn, dialogue) {
    if (!turn.prompt) return null;
    const anew = turn.prompt.anew ? "; earlier messages were written anew" : "";
    const title = `Prompt: ${plural(turn.prompt.tokens, "token")}, ${sweetrl.count(turn.prompt.new)} new${anew}`;
    if (!data.computable(dialogue, "prompts")) return h("p", { class: "cost" }, title);
    const box = folded(title);
    const read = async () => {
      const texts = data.compute(dialogue, "prompts");
      box.append(verbatim(await texts.then((all) => all[turn.number]).catch((error) => error.message)));
    };
    box.addEventListener("toggle", read, { once: true });
    return box;
  }

  /** What is known of one turn of the agent. @param {any} turn @param {number} scale */
  function below(turn, scale) {
    const rankings = /** @type {[string, any][]} */ (Object.entries(turn.rankings));
    const named = (/** @type {string} */ name) => (rankings.length > 1 ? name : "");
    const bars = rankings.map(([name, { candidates }]) => {
      const place = candidates.findIndex((/** @type {any} */ one) => one.said);
      if (place < 0 || candidates[place].advantage === null) return null;
      const rank = `${place + 1} of ${candidates.length}`;
      return advantageLine(named(name), candidates[place].advantage, scale, rank);
    });
    const sampled = rankings.map(([name, state]) =>
      h("div", {}, named(name) && h("span", { class: "muted" }, name), parts.candidates(state, scale)),
    );
    const perplexity = turn.perplexity && `perplexity ${turn.perplexity.toFixed(2)}`;
    const cost = [turn.tokens && plural(turn.tokens, "token"), perplexity, turn.cut && "cut at the limit"];
    const spent = cost.filter(Boolean).join(" · ");
    return h("div", { class: "below" }, [
      bars,
      sampled,
      turn.raw && folded("The agent's raw reply", verbatim(turn.raw)),
      h("div", { class: "heatplace" }),
      spent && h("p", { class: "cost" }, spent),
    ]);
  }

  /** @param {string} name @param {number} value @param {number} scale @param {string} rank */
  function advantageLine(name, value, scale, rank) {
    return h("div", { class: "advantage" }, [
      h("span", { class: "muted" }, name ? `${name} ` : "Advantage "),
      parts.bar(value, scale),
      h("span", { class: "figure" }, signed(value)),
      rank && h("span", { class: "muted" }, `rank ${rank}`),
    ]);
  }

  /** What stands beside the chat. @param {any} dialogue @param {number} row @param {any} chat */
  function about(dialogue, row, chat) {
    const sections = data.meta.server && data.meta.labels ? [labelling(row)] : [];
    const card = (/** @type {string} */ look, /** @type {string} */ title, /** @type {any[]} */ ...[action, place]) =>
      sections.push(h("section", { class: look }, h("div", { class: "cardhead" }, h("h3", {}, title), action), place));
    if (dialogue.tests.length) {
      const place = h("div", {}, parts.tests(dialogue, null));
      const run = async () => place.replaceChildren(parts.tests(dialogue, await data.compute(dialogue, "run")));
      const runs = dialogue.can_run && data.computable(dialogue, "run");
      card("card tests-card", "Hidden tests", runs && parts.onDemand("Run again", "run", run), place);
    }
    if (dialogue.has_pages && data.computable(dialogue, "pictures")) {
      const place = h("div");
      const draw = parts.onDemand("Draw the pages", "run", async () => {
        place.replaceChildren(pages(await data.compute(dialogue, "pictures")));
        draw.remove();
      });
      card("card", "Pages", draw, place);
    }
    const { files } = sweetrl;
    const action = (/** @type {string} */ label, /** @type {() => void} */ work) =>
      button(label, work, { class: "button quiet" });
    const json = () => JSON.stringify(files.plain(dialogue), null, 2);
    const tools = [
      sweetrl.menu(
        "Copy",
        "copy",
        action("JSON", () => sweetrl.copy(json(), "JSON")),
        action("Text", () => sweetrl.copy(files.script(dialogue), "Text")),
        action("Address", () => sweetrl.copy(location.href, "Address")),
      ),
      sweetrl.menu(
        "Download",
        "download",
        action("JSON", () => files.save(files.named(dialogue, ".json"), json(), "application/json")),
        action("Text", () => files.save(files.named(dialogue, ".txt"), `${files.script(dialogue)}\n`, "text/plain")),
      ),
      button([icon("print"), "Print"], () => print(), { class: "button small" }),
      asWritten(dialogue, chat),
    ];
    const stored = dialogue.turns.map(storedHeat);
    const complete = dialogue.turns.every(
      (/** @type {any} */ one, /** @type {number} */ place) => stored[place] || !one.tokens,
    );
    const computable = (dialogue.computed && dialogue.computed.heat) || data.meta.heat;
    if (dialogue.turns.some((/** @type {any} */ one) => one.tokens) && (computable || stored.some(Boolean)))
      tools.unshift(
        parts.onDemand("Tokens by the critic", "heat", async () =>
          complete || !computable
            ? warm(chat, stored, "Stored by rank:")
            : warm(chat, await data.compute(dialogue, "heat"), "By the critic at hand:"),
        ),
      );
    const raw = h("details", { class: "raw" }, h("summary", {}, "Raw JSON"));
    raw.addEventListener("toggle", () => raw.append(verbatim(json())), { once: true });
    const facts = parts.facts([
      ["Policy", dialogue.policy],
      ["User", dialogue.simulator],
      ["Seed", dialogue.seed],
      ["Ended", ENDS[/** @type {"lost"} */ (dialogue.outcome)]],
      ...cost(dialogue.cost),
      ...Object.entries(dialogue.parts).map(([name, value]) => [`${data.measure("reward")}: ${name}`, value]),
      ...Object.entries(dialogue.extra),
    ]);
    const buttons = h("div", { class: "buttons" }, tools);
    sections.push(h("section", { class: "card" }, h("h3", {}, "About"), numbers(row), facts, buttons, raw));
    return sections;
  }

  /** What a dialogue has cost, where its run has noted it. @param {any} spent @returns {[string, any][]} */
  function cost(spent) {
    if (!spent) return [];
    const cached = spent.cached_tokens ? ` (${sweetrl.count(spent.cached_tokens)} cached)` : "";
    return [
      ["Time", `${spent.seconds.toFixed(1)} s`],
      ["Time of the engine", `${spent.busy_seconds.toFixed(2)} s`],
      ["Tokens read", `${sweetrl.count(spent.prompt_tokens)}${cached}`],
      ["Tokens written", sweetrl.count(spent.generated_tokens)],
    ];
  }

  /** What the list says of a dialogue. @param {number} row */
  function numbers(row) {
    const { columns } = data;
    const known = (/** @type {string} */ name) => {
      const value = columns[name][row];
      return Number.isNaN(value) ? "" : Number.isInteger(value) ? value : value.toFixed(3);
    };
    const turn = Number.isNaN(columns.fault_turn[row]) ? "" : `, turn ${columns.fault_turn[row]}`;
    const faults = sweetrl.filters.FAULTS.filter(([key]) => columns[key][row] > 0).map(([key, label, about]) =>
      h("li", { title: about }, columns[key][row] > 1 ? `${label} × ${columns[key][row]}` : label),
    );
    return [
      faults.length ? h("ul", { class: "faultlist" }, faults) : null,
      parts.facts([
        ["Source", data.word("source", row)],
        [data.measure("reward"), known("reward")],
        ["Label", data.meta.server ? "" : known("label")],
        ["Note", data.meta.server ? "" : data.notes.get(row)],
        ["Turns", known("turns")],
        ["Questions", known("questions")],
        ["Hidden details", known("details")],
        ["Advantage, mean", known("advantage")],
        ["Advantage, least", known("least_advantage")],
        ["First fault", data.word("first_fault", row) && `${data.word("first_fault", row)}${turn}`],
        ["Temperature", data.word("temperature", row)],
        ["Persona", data.word("persona", row)],
        ["Training seed", data.word("seed", row)],
      ]),
    ];
  }

  /** A button that shows the messages letter by letter as they were written, and back. @param {any} dialogue @param {any} chat */
  function asWritten(dialogue, chat) {
    const turn = () => {
      const raw = toggle.getAttribute("aria-pressed") !== "true";
      toggle.setAttribute("aria-pressed", String(raw));
      const bubbles = chat.querySelectorAll(".message:not(.system) .bubble");
      dialogue.messages.slice(1).forEach((/** @type {any} */ message, /** @type {number} */ place) => {
        const words = raw
          ? h("pre", { class: "written" }, sweetrl.files.said(message))
          : parts.pieces(message.pieces, data.terms(list.state.q || ""));
        bubbles[place].replaceChildren(...[words].flat());
      });
    };
    const toggle = button("As written", turn, { class: "button small", "aria-pressed": "false" });
    return toggle;
  }

  /** The tokens of what was said at a turn, where a ranking has stored them. @param {any} turn */
  function storedHeat(turn) {
    return Object.values(turn.rankings)
      .flatMap((state) => state.candidates)
      .find((one) => one.said && one.heat)?.heat;
  }

  /** Colour the agent's tokens, of the turns that have some. @param {any} chat @param {any[]} turns @param {string} label */
  function warm(chat, turns, label) {
    const mean = (/** @type {[string, number | null][]} */ tokens, size = (/** @type {number} */ ratio) => ratio) =>
      tokens.reduce((sum, [, ratio]) => sum + size(ratio ?? NaN), 0) / (tokens.length || 1);
    const sizes = turns.filter(Boolean).map((tokens) => mean(tokens, Math.abs));
    const scale = Math.max(0.05, ...sizes.filter((size) => !Number.isNaN(size)));
    chat.querySelectorAll(".heatplace").forEach((/** @type {any} */ place, /** @type {number} */ number) => {
      const tokens = turns[number];
      if (!tokens) return;
      const value = mean(tokens);
      const line = Number.isNaN(value) ? [] : [advantageLine(label, value, scale, "")];
      place.replaceChildren(...line, parts.heat(tokens));
    });
  }

  /** @param {any} found */
  function pages(found) {
    const figure = (/** @type {string} */ title, /** @type {string | null} */ src) =>
      src && h("figure", {}, h("img", { src, alt: title, loading: "lazy" }), h("figcaption", {}, title));
    const drawn = Object.entries(found.pages).map(([index, one]) => {
      const turn = `Turn ${(Number(index) + 1) / 2}`;
      return [figure(turn, one.picture), figure(`${turn}: difference from the reference`, one.difference)];
    });
    return h("div", { class: "pictures" }, figure("Reference", found.reference), drawn);
  }

  sweetrl.dialogue = { show, step };
})();
