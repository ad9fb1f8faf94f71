
"use strict";
// Whatever a run left is put into the page as text only: by textContent, title and value, never as markup.
const shown = JSON.parse(document.getElementById("shown").textContent);
const byId = id => document.getElementById(id);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const number = (value, digits = 4) => value === null || value === undefined ? "–" : String(Number(value.toPrecision(digits)));

// Curves: one epoch is read in all plots at once.

const curves = new Map(Object.entries(shown.curves).map(([name, points]) => [name, new Map(points)]));
const plots = [...document.querySelectorAll(".plot")].map(figure => ({
  figure, svg: figure.querySelector("svg"), cursor: figure.querySelector(".cursor"), last: Math.max(1, Number(figure.dataset.last)),
  entries: [...figure.querySelectorAll("li")].map(li => ({name: li.dataset.name, value: li.querySelector("b"), latest: li.querySelector("b").textContent})),
}));

function epochAt(plot, event) {
  const box = plot.svg.getBoundingClientRect();
  const share = ((event.clientX - box.left) / box.width - shown.plot.left) / (shown.plot.right - shown.plot.left);
  return Math.round(Math.min(1, Math.max(0, share)) * plot.last);
}

function readAt(epoch) {
  for (const plot of plots) {
    const x = (shown.plot.left + (shown.plot.right - shown.plot.left) * epoch / plot.last) * plot.svg.viewBox.baseVal.width;
    plot.cursor.classList.toggle("on", epoch !== null);
    if (epoch !== null) for (const end of ["x1", "x2"]) plot.cursor.setAttribute(end, x);
    for (const entry of plot.entries)
      entry.value.textContent = epoch === null ? entry.latest : number(curves.get(entry.name).get(epoch));
  }
}

for (const plot of plots) {
  plot.svg.addEventListener("mousemove", event => readAt(epochAt(plot, event)));
  plot.svg.addEventListener("mouseleave", () => readAt(null));
  plot.svg.addEventListener("click", event => showNearest(epochAt(plot, event)));
}
for (const row of document.querySelectorAll("#events tr[data-epoch]"))
  row.addEventListener("click", () => showNearest(Number(row.dataset.epoch)));

// Episodes: one moment (an epoch's play, or a held-out stage's) at a time.

const moments = [...Map.groupBy(shown.episodes, e => e.epoch + " " + e.stage).values()]
  .sort((a, b) => a[0].epoch - b[0].epoch || a[0].stage.localeCompare(b[0].stage));
const view = {moment: 0, episode: null, colour: "mask", scale: 1};
const top95 = values => {
  const sizes = values.filter(Number.isFinite).map(Math.abs).filter(size => size > 0).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor(0.95 * (sizes.length - 1))] : 1;
};
const each = (turn, name, t) => turn.update ? turn.update[name][t] : null;

const COLOURS = {
  "mask": null,
  "advantage": {signed: true, of: turn => turn.update && turn.update.advantage,
    note: "advantage of the turn; blue is made more likely, orange less"},
  "log-ratio": {signed: true, of: (turn, t) => each(turn, "log_ratios", t),
    note: "log π new − log π old, nats, just before the step of the turn’s mini-batch; 0 in the epoch’s first mini-batch"},
  "log-prob": {signed: false, of: (turn, t) => turn.behavior_logprobs[t],
    note: "log-prob that the sampler gave the token, nats; strong is unlikely"},
  "entropy": {signed: false, of: (turn, t) => each(turn, "entropies", t),
    note: "entropy of the policy at the token, nats"},
};

function scaleOf(colour) { // of all tokens of the moment, so that its episodes can be compared
  const turns = moments[view.moment].flatMap(episode => episode.turns);
  return top95(turns.flatMap(turn => turn.behavior_logprobs.map((_, t) => colour.of(turn, t))));
}

function paint(token, value, colour) {
  const known = Number.isFinite(value);
  const hue = !known ? "--out" : !colour.signed ? "--heat" : value < 0 ? "--down" : "--up";
  const much = known ? Math.min(1, Math.abs(value) / view.scale) * 85 : 25;
  token.style.setProperty("--hue", "var(" + hue + ")");
  token.style.setProperty("--much", much.toFixed(1) + "%");
}

function makeToken(turn, t) {
  const text = turn.tokens[t], colour = COLOURS[view.colour];
  const token = make("span", "token");
  if (text === "") token.append(make("span", "blank", "·"));
  else for (const part of text.split(/(\n)/)) if (part === "\n") token.append(make("span", "blank", "↵"), "\n"); else token.append(part);
  if (colour) paint(token, colour.of(turn, t), colour);
  else token.classList.add(!turn.update ? "out" : turn.update.kept[t] ? "kept" : "dropped");
  if (turn.update && turn.update.clipped[t]) token.classList.add("clipped");
  token.title = [JSON.stringify(text), "log-prob " + number(turn.behavior_logprobs[t]), ...(turn.update ? [
    "log-ratio " + number(turn.update.log_ratios[t]) + ", ratio " + number(Math.exp(turn.update.log_ratios[t] ?? NaN)),
    "advantage " + number(turn.update.advantage), "entropy " + number(turn.update.entropies[t]),
    (turn.update.kept[t] ? "in the policy term" : "dropped by the mask") + (turn.update.clipped[t] ? ", clipped" : ""),
  ] : ["not in the loss"])].join("\n");
  return token;
}

function makeTurn(turn, k) {
  const card = make("article", "turn"), right = make("div"), seen = make("pre"), board = make("span", "board");
  const grid = gridOf(turn.observation);
  for (const part of grid.split(/([#_]+)/)) board.append(make("span", /^[#_]/.test(part) ? "ground" : "", part));
  seen.append(board, turn.observation.slice(grid.length));
  const response = make("div", "response");
  if (turn.tokens) turn.tokens.forEach((_, t) => response.append(makeToken(turn, t)));
  else response.textContent = turn.response;
  const title = make("h4", "", "turn " + k + (turn.update ? " · mini-batch " + turn.update.minibatch : ""));
  const outcome = make("p", "outcome");
  if (!turn.valid) outcome.append(make("span", "bad", "invalid "));
  outcome.append("action ", make("b", "", turn.action), " · reward ", make("b", "", number(turn.reward)));
  if (turn.penalty) outcome.append(" · penalty ", make("b", "", number(turn.penalty)));
  if (turn.update) outcome.append(" · advantage ", make("b", "", number(turn.update.advantage)));
  right.append(response, outcome);
  card.append(title, seen, right);
  return card;
}

function gridOf(text) { // the first lines, where three or more are short, of one length and without blanks
  const lines = text.split("\n"), width = lines[0].length;
  const end = lines.findIndex(line => line.length !== width || width < 3 || width > 24 || line.includes(" "));
  const rows = end < 0 ? lines.length : end;
  return rows > 2 ? lines.slice(0, rows).join("\n") : "";
}

function makeLegend() {
  const colour = COLOURS[view.colour], legend = [];
  if (!colour) {
    for (const [kind, text] of [["kept", "in the policy term"], ["dropped", "dropped by the mask"], ["out", "not in the loss"]])
      legend.push(make("span", "swatch token " + kind, text));
  } else {
    const ramp = make("span", "ramp");
    for (let i = colour.signed ? -8 : 0; i <= 8; i++) {
      const step = make("i", "token");
      paint(step, i / 8 * view.scale, colour);
      ramp.append(step);
    }
    const low = colour.signed ? "−" + number(view.scale, 2) : "0";
    const high = (view.colour === "log-prob" ? "−" : "") + number(view.scale, 2);
    legend.push(make("span", "", low), ramp, make("span", "", high), make("span", "", colour.note));
  }
  legend.push(make("span", "swatch token clipped", "clipped by the surrogate"));
  byId("legend").replaceChildren(...legend);
}

function makeGroups(moment) {
  const rows = [...Map.groupBy(moment, episode => episode.group + " " + episode.task_seed).values()].map(members => {
    const row = make("div", "group", "task " + members[0].task_seed);
    for (const episode of members) {
      const button = make("button", episode.success ? "won" : "lost", "episode " + episode.member + ": score " + number(episode.score));
      button.type = "button";
      button.title = episode.stop + (episode.error ? ": " + episode.error : "") + ", " + episode.turns.length + " turns";
      button.setAttribute("aria-pressed", String(episode === view.episode));
      button.addEventListener("click", () => { view.episode = episode; show(); });
      row.append(button);
    }
    return row;
  });
  byId("groups").replaceChildren(...rows);
}

function show() {
  const moment = moments[view.moment];
  if (!moment.includes(view.episode)) view.episode = moment[0];
  byId("epoch").value = String(view.moment);
  byId("before").disabled = view.moment === 0;
  byId("after").disabled = view.moment === moments.length - 1;
  for (const button of document.querySelectorAll("#colours button"))
    button.setAttribute("aria-pressed", String(button.textContent === view.colour));
  if (COLOURS[view.colour]) view.scale = scaleOf(COLOURS[view.colour]);
  makeGroups(moment);
  makeLegend();
  const turns = view.episode.turns;
  byId("turns").classList.toggle("long", turns.some(turn => turn.observation.length > 400 || turn.response.length > 120));
  byId("turns").replaceChildren(...turns.map(makeTurn));
  if (view.episode.error) byId("turns").prepend(make("p", "bad", view.episode.error));
}

function showNearest(epoch) {
  if (!moments.length) return;
  const far = moment => Math.abs(moment[0].epoch - epoch) + (moment[0].stage === "train" ? 0 : 0.1);
  view.moment = moments.reduce((best, moment, i) => far(moment) < far(moments[best]) ? i : best, 0);
  show();
  byId("episodes").scrollIntoView();
}

if (moments.length) {
  moments.forEach((moment, i) => byId("epoch").append(new Option(moment[0].epoch + " · " + moment[0].stage, String(i))));
  for (const name of Object.keys(COLOURS)) {
    const button = make("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => { view.colour = name; show(); });
    byId("colours").append(button);
  }
  byId("epoch").addEventListener("change", event => { view.moment = Number(event.target.value); show(); });
  byId("before").addEventListener("click", () => { view.moment--; show(); });
  byId("after").addEventListener("click", () => { view.moment++; show(); });
  byId("browser").hidden = false;
  view.moment = moments.findLastIndex(moment => moment[0].stage === "train");
  if (view.moment < 0) view.moment = moments.length - 1;
  show();
} else {
  byId("episodes").append(make("p", "note", "No episode is recorded yet."));
}
