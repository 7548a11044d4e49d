// Drawings: points with intervals, lines, bars and a flow. Each has its numbers in a table for who cannot see it.
// @ts-check
"use strict";

(() => {
  const { h, s, percent, count, number } = sweetrl;

  /** @param {string} title @param {string} about @param {any} drawing @param {string[]} heads @param {any[][]} rows */
  function figure(title, about, drawing, heads, rows) {
    const caption = h("figcaption", {}, h("h2", {}, title), about && h("p", { class: "muted" }, about));
    const numbers = h("details", {}, h("summary", {}, "The numbers"), sweetrl.table(heads, rows));
    return h("figure", { class: "card chart" }, caption, drawing, numbers);
  }

  /** @param {any[]} series each {label, color} */
  function legend(series) {
    const dot = (/** @type {any} */ one) => h("i", { class: "dot", style: { "--tone": one.color } });
    const names = series.map((one) => h("span", {}, dot(one), one.label));
    return h("div", { class: "legend" }, names);
  }

  /** A line between two points. @param {number} one @param {number} other */
  const joint = (one, other) =>
    h("b", { class: "joint", style: { "--from": Math.min(one, other), "--to": Math.max(one, other) } });

  /** A point with its interval on a scale. @param {any} point @param {(value: number) => number} at @param {number} shift in pixels */
  function estimate(point, at, shift) {
    const { value, low, high, n, color, name } = point;
    const style = { "--at": at(value), "--low": at(low), "--high": at(high), "--tone": color };
    const title = `${name}: ${percent(value)} [${percent(low)}, ${percent(high)}], n = ${count(n)}`;
    return h("span", { class: "estimate", title, style: { ...style, "--shift": `${shift}px` } }, h("i"), h("b"));
  }

  /**
   * Points with intervals, a line of them for each label: in HTML, so that labels wrap and long lists stay readable.
   * @param {{label: any, points: {value: number, low: number, high: number, n: number, color: string, name: string}[]}[]} rows
   */
  function dots(rows) {
    const all = rows.flatMap((row) => row.points);
    const most = Math.max(0.05, ...all.map((one) => one.high)),
      begin = Math.min(0, ...all.map((one) => one.low)); // below it are rewards that cost something
    const end = most > 1 ? most : most > 0.6 ? 1 : most > 0.4 ? 0.6 : most > 0.2 ? 0.4 : most > 0.1 ? 0.2 : 0.1;
    const values = Math.max(...rows.map((row) => row.points.length));
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => begin + share * (end - begin));
    const at = (/** @type {number} */ value) => (value - begin) / (end - begin);
    const lines = rows.map(({ label, points }) => {
      const estimates = points.map((point, place) =>
        estimate(point, at, (place - (points.length - 1) / 2) * (points.length > 2 ? 7 : 5)),
      );
      const pair = points.length === 2 && joint(at(points[0].value), at(points[1].value));
      const shares = points.map((one) => h("span", { style: { "--tone": one.color } }, percent(one.value, 0)));
      const track = h("div", { class: "track" }, pair, estimates);
      const value = values <= 2 && h("div", { class: "dotvalue" }, shares);
      return h("div", { class: "dotrow" }, h("div", { class: "dotlabel" }, label), track, value);
    });
    const marks = ticks.map((one) => h("span", { class: "tick", style: { "--at": at(one) } }, percent(one, 0)));
    const scale = [h("div"), h("div", { class: "track" }, marks), values <= 2 && h("div")];
    const axis = h("div", { class: "dotrow axis", "aria-hidden": "true" }, scale);
    return h("div", { class: values > 2 ? "dots many" : "dots", style: { "--values": values } }, lines, axis);
  }

  /**
   * Lines with bands.
   * @param {{label: string, color: string, points: {x: number, y: number, low?: number, high?: number, n?: number}[]}[]} series
   * @param {{x: string, share?: boolean, name: string}} words
   */
  function lines(series, words) {
    const [wide, tall, left, right, top, bottom] = [560, 240, 46, 12, 10, 34];
    const all = series.flatMap((one) => one.points);
    const xs = all.map((one) => one.x),
      ys = all.flatMap((one) => [one.y, one.low ?? one.y, one.high ?? one.y]);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    let [y0, y1] = words.share ? [0, 1] : [Math.min(...ys), Math.max(...ys)];
    if (y0 === y1) y1 = y0 + 1;
    const x = (/** @type {number} */ value) => left + ((value - x0) / (x1 - x0 || 1)) * (wide - left - right);
    const y = (/** @type {number} */ value) => tall - bottom - ((value - y0) / (y1 - y0)) * (tall - top - bottom);
    const ticks = (/** @type {number} */ from, /** @type {number} */ to, /** @type {number} */ about) => {
      const raw = (to - from) / about,
        power = 10 ** Math.floor(Math.log10(raw));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw) || raw;
      const found = [];
      for (let value = Math.ceil(from / step) * step; value <= to + step * 1e-6; value += step)
        found.push(Number(value.toPrecision(10)));
      return found;
    };
    const path = (/** @type {any[]} */ points, /** @type {string} */ key) =>
      points.map((one, place) => `${place ? "L" : "M"}${x(one.x).toFixed(1)} ${y(one[key]).toFixed(1)}`).join("");
    const drawing = s(
      "svg",
      { viewBox: `0 0 ${wide} ${tall}`, class: "lines", role: "img", "aria-label": words.name },
      ticks(y0, y1, 4).map((value) => {
        const label = words.share ? percent(value, 0) : number(value);
        const grid = s("line", { class: "grid", x1: left, x2: wide - right, y1: y(value), y2: y(value) });
        return [grid, s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, label)];
      }),
      ticks(x0, x1, 6)
        .filter((value) => !words.share || Number.isInteger(value))
        .map((value) => s("text", { x: x(value), y: tall - bottom + 16, "text-anchor": "middle" }, number(value))),
      s("text", { class: "axisname", x: (left + wide - right) / 2, y: tall - 3, "text-anchor": "middle" }, words.x),
      series.map((one) => {
        const { points, color } = one;
        const many = points.length > 60; // then every step is drawn thin, and the mean around it over that
        const line = (/** @type {any[]} */ through, /** @type {string} */ look) =>
          s("path", { class: look, style: { stroke: color }, d: path(through, "y") });
        const band = () => `${path(points, "high")}${path([...points].reverse(), "low").replace("M", "L")}Z`;
        const said = (/** @type {any} */ point) =>
          `${one.label}: ${words.share ? percent(point.y) : number(point.y)}${point.n ? `, n = ${count(point.n)}` : ""}`;
        const dot = (/** @type {any} */ point) =>
          s("circle", { cx: x(point.x), cy: y(point.y), r: 3.2, style: { fill: color } }, s("title", {}, said(point)));
        return [
          points.length > 1 &&
            points[0].low !== undefined &&
            s("path", { class: "band", style: { fill: color }, d: band() }),
          line(points, many ? "line raw" : "line"),
          many && line(smooth(points), "line"),
          points.length < 30 && points.map(dot),
        ];
      }),
    );
    return [series.length > 1 ? legend(series) : null, drawing];
  }

  /** A running mean over a tenth of the points. @param {{x: number, y: number}[]} points */
  function smooth(points) {
    const half = Math.ceil(points.length / 20);
    return points.map((one, place) => {
      const near = points.slice(Math.max(0, place - half), place + half + 1);
      return { x: one.x, y: near.reduce((sum, each) => sum + each.y, 0) / near.length };
    });
  }

  /**
   * A flow from kinds on the left to kinds on the right.
   * @param {{from: string, to: string, many: number}[]} flows @param {string[]} left @param {string[]} right
   * @param {Record<string, string>} tones @param {Record<string, string>} names @param {(from: string, to: string) => string} address
   */
  function flow(flows, left, right, tones, names, address) {
    const [wide, tall, gap, bar, room] = [640, Math.max(220, 44 * left.length), 10, 12, 170];
    const total = flows.reduce((sum, one) => sum + one.many, 0) || 1;
    const scale = (tall - (gap + 8) * Math.max(left.length, right.length)) / total;
    const starts = (/** @type {string[]} */ kinds, /** @type {"from" | "to"} */ end) => {
      /** @type {Record<string, {y: number, height: number, used: number, many: number}>} */
      const found = {};
      let y = 0;
      for (const kind of kinds) {
        const many = flows.filter((one) => one[end] === kind).reduce((sum, one) => sum + one.many, 0);
        found[kind] = { y, height: many * scale, used: 0, many };
        y += Math.max(many * scale, 8) + gap; // room for a label
      }
      return found;
    };
    const [from, to] = [starts(left, "from"), starts(right, "to")];
    const [x0, x1] = [room + bar, wide - room - bar];
    const middle = (x0 + x1) / 2;
    const bands = left.flatMap((one) =>
      right.map((other) => {
        const { many } = flows.find((each) => each.from === one && each.to === other) || { many: 0 };
        if (!many) return null;
        const height = many * scale;
        const [a, b] = [from[one].y + from[one].used, to[other].y + to[other].used];
        from[one].used += height;
        to[other].used += height;
        const upper = `M${x0} ${a}C${middle} ${a} ${middle} ${b} ${x1} ${b}`;
        const lower = `V${b + height}C${middle} ${b + height} ${middle} ${a + height} ${x0} ${a + height}Z`;
        const words = `${names[one] || one}, ${names[other] || other}: ${count(many)}`;
        const look = { class: "stream", d: upper + lower, style: { fill: tones[other] } };
        const stream = s("path", look, s("title", {}, words));
        return s("a", { href: address(one, other), "aria-label": words }, stream);
      }),
    );
    const label = (/** @type {any} */ node, /** @type {string} */ kind, /** @type {number} */ x) => {
      const place = { x, y: node.y + node.height / 2 + 4, "text-anchor": x < wide / 2 ? "end" : "start" };
      const many = s("tspan", { class: "many" }, count(node.many));
      return node.many > 0 && s("text", place, `${names[kind] || kind} `, many);
    };
    const node = (/** @type {any} */ one, /** @type {number} */ x, /** @type {any} */ look) =>
      s("rect", { x, y: one.y, width: bar, height: Math.max(1, one.height), rx: 2, ...look });
    const shape = { viewBox: `0 -6 ${wide} ${tall + 12}`, class: "flow", role: "group" };
    return s(
      "svg",
      { ...shape, "aria-label": "From the first fault to the outcome" },
      bands,
      left.map((one) => [node(from[one], room, { class: "node" }), label(from[one], one, room - 8)]),
      right.map((one) => [node(to[one], x1, { style: { fill: tones[one] } }), label(to[one], one, x1 + bar + 8)]),
    );
  }

  sweetrl.charts = { figure, legend, dots, lines, flow };
})();
