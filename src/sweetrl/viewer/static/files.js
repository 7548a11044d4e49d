// Files for the reader: the list's numbers as CSV, dialogues as JSON or text.
// @ts-check
"use strict";

(() => {
  const { data, toast, plural, visible } = sweetrl;
  const SPEAKERS = { user: "User", assistant: "Agent", system: "System" };
  const MOST = 2000; // dialogues in a file of dialogues: the page holds it as a whole

  /** Hand a file to the reader. @param {string} name @param {string} text @param {string} type */
  function save(name, text, type) {
    const address = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
    const link = sweetrl.h("a", { href: address, download: name.replace(/[^\w.@-]+/g, "-") });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
    toast(`${link.download} written`);
  }

  /** A value in a line of CSV. A text that a spreadsheet would compute gets a quote in front. @param {any} value */
  function field(value) {
    if (typeof value !== "string") return value === value ? String(value) : "";
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  /** The numbers of rows, a line each. @param {Iterable<number>} rows */
  function csv(rows) {
    const kinds = Object.entries(data.meta.kinds);
    const lines = [kinds.map(([name]) => field(name)).join(",")];
    for (const row of rows)
      lines.push(
        kinds
          .map(([name, kind]) => {
            if (kind === "text") return field(data.tasks[row]);
            if (kind === "word") return field(data.word(name, row));
            const value = data.columns[name][row];
            return kind === "truth" ? ["", "false", "true"][value + 1] : field(value);
          })
          .join(","),
      );
    return `${lines.join("\r\n")}\r\n`;
  }

  /** Write whole dialogues, a line of JSON each. @param {ArrayLike<number>} rows */
  async function lines(rows) {
    if (rows.length > MOST) {
      toast(`That is for ${plural(MOST, "dialogue")} at most; filter the list first.`);
      return;
    }
    const found = [];
    for (const row of Array.from(rows)) {
      if (found.length % 50 === 0 && found.length) toast(`${found.length} of ${rows.length} …`);
      found.push(JSON.stringify(plain(await data.dialogue(row))));
    }
    save("dialogues.jsonl", `${found.join("\n")}\n`, "application/jsonl");
  }

  /** A dialogue without what belongs to this page. @param {any} dialogue */
  function plain(dialogue) {
    const { computed, row, ...rest } = dialogue;
    return rest;
  }

  /** What a message says, as it was said. @param {any} message */
  const said = (message) =>
    message.text ?? message.pieces.map((/** @type {[string, string]} */ part) => part[1]).join("\n");

  /** A dialogue as people write it down. @param {any} dialogue */
  const script = (dialogue) =>
    dialogue.messages
      .map((/** @type {any} */ one) => `${SPEAKERS[/** @type {"user"} */ (one.role)]}: ${said(one)}`)
      .join("\n\n");

  /** The name of a file about a dialogue. @param {any} dialogue @param {string} end */
  const named = (dialogue, end) =>
    [dialogue.source, dialogue.task.id, dialogue.attempt].filter(Boolean).map(visible).join("-") + end;

  sweetrl.files = { SPEAKERS, save, csv, lines, plain, said, script, named };
})();
