// A dialogue with the live agent: whoever reads the page is the user.
// @ts-check
"use strict";

(() => {
  const { h, button, data, dialogue, parts, plural } = sweetrl;
  const SAYS = {
    loading: "The agent is being loaded …",
    thinking: "The agent is thinking …",
    waiting: "Your answer, in a sentence or two.",
    done: "The dialogue is over.",
    lost: "The dialogue ended without an answer.",
    none: "",
  };
  /** @type {any} */
  let timer = 0;

  /** Draw the page. @param {HTMLElement} main @param {URLSearchParams} search */
  async function show(main, search) {
    clearTimeout(timer);
    if (!data.meta.live) {
      main.replaceChildren(
        h("p", { class: "empty" }, "An agent answers only where `sweetrl view` runs; this is an exported folder."),
      );
      return;
    }
    const state = await data.ask("live");
    const place = h("div", { class: "talk" });
    main.replaceChildren(place);
    draw(place, state, search);
  }

  /** @param {HTMLElement} place @param {any} state @param {URLSearchParams} search */
  function draw(place, state, search) {
    clearTimeout(timer);
    if (!place.isConnected) return;
    const over = ["none", "done", "lost"].includes(state.status);
    const children = [];
    if (state.status === "none") children.push(beginning(place, search));
    else children.push(...talking(place, state, search));
    place.replaceChildren(...children);
    const box = place.querySelector("textarea");
    if (box && state.status === "waiting") box.focus();
    place
      .querySelector(state.status === "done" ? ":scope > .card:last-child" : ".messages > li:last-child")
      ?.scrollIntoView({ block: "nearest" });
    if (!over && state.status !== "waiting") timer = setTimeout(() => ask(place, "live", undefined, search), 350);
  }

  /** @param {HTMLElement} place @param {string} path @param {any} body @param {URLSearchParams} search */
  async function ask(place, path, body, search) {
    try {
      draw(place, await data.ask(path, body), search);
    } catch (error) {
      sweetrl.toast(/** @type {Error} */ (error).message);
    }
  }

  /** @param {HTMLElement} place @param {URLSearchParams} search */
  function beginning(place, search) {
    const task = h("input", { id: "task", value: search.get("task") || "0", "aria-describedby": "task-help" });
    const policy = h(
      "select",
      { id: "policy" },
      [
        ["auto", "the trained agent"],
        ["base", "the base agent"],
      ].map(([value, label]) => h("option", { value, selected: value === search.get("policy") }, label)),
    );
    const seed = h("input", { id: "seed", type: "number", min: "0", value: "0" });
    const form = h(
      "form",
      { class: "card begin" },
      h("h1", {}, "Talk with the agent"),
      h(
        "p",
        { class: "muted" },
        "You are the user: you want the program (or the page) of a task, and only you know the details. Answer what the agent asks; what it hands over is scored by the hidden tests.",
      ),
      h("label", {}, h("span", {}, "Task"), task),
      h("p", { class: "muted small", id: "task-help" }, "A test task's id, or its number from 0."),
      h("label", {}, h("span", {}, "Agent"), policy),
      h("label", {}, h("span", {}, "Seed"), seed),
      h("button", { class: "button primary", type: "submit" }, "Begin"),
    );
    form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      ask(
        place,
        "live/begin",
        { task: task.value.trim() || "0", policy: policy.value, seed: Number(seed.value) || 0 },
        search,
      );
    });
    return form;
  }

  /** @param {HTMLElement} place @param {any} state @param {URLSearchParams} search */
  function talking(place, state, search) {
    const shown = { row: -1, ...state.dialogue };
    const over = state.status === "done" || state.status === "lost";
    const asked = shown.messages.filter((/** @type {any} */ one) => one.role === "assistant").length;
    const box = h("textarea", {
      rows: "2",
      "aria-label": "Your answer",
      placeholder: "Your answer …",
      maxlength: "4000",
      disabled: state.status !== "waiting",
    });
    const send = () => box.value.trim() && ask(place, "live/say", { words: box.value.trim() }, search);
    box.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    const about = `${state.agent} · ${plural(asked, "turn")} of ${state.max_turns}`;
    const head = h(
      "header",
      { class: "pagehead" },
      h("div", { class: "title" }, h("h1", {}, shown.task.id), h("p", { class: "muted" }, about)),
      button(over ? "Another dialogue" : "Leave", () => leave(place, over, search)),
    );
    const solved = shown.success ? "solved" : "not solved";
    const pill = h("span", { class: `verdict pill ${shown.success ? "yes" : "no"}` }, solved);
    const reward = shown.reward === null ? "" : ` reward ${shown.reward.toFixed(2)}`;
    const words = [SAYS[/** @type {"lost"} */ (state.status)], state.error].filter(Boolean).join(" ");
    const look = { class: "button primary", disabled: state.status !== "waiting" };
    return [
      head,
      dialogue.request(shown),
      dialogue.conversation(shown, state.advantages),
      h("p", { class: `status ${state.status}`, role: "status", "aria-live": "polite" }, words),
      state.status === "done" && h("section", { class: "card" }, h("h2", {}, pill, reward), parts.tests(shown, null)),
      !over && h("div", { class: "say" }, box, button("Send", send, look)),
    ].filter(Boolean);
  }

  /** @param {HTMLElement} place @param {boolean} over @param {URLSearchParams} search */
  async function leave(place, over, search) {
    if (!over) await ask(place, "live/leave", {}, search);
    draw(place, { status: "none" }, search);
  }

  sweetrl.talk = { show };
})();
