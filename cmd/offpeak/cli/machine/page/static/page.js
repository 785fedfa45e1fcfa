// Shows what the agent says, each second, and tells it to pause. Texts are put in as
// text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const keyName = "offpeak-key";
const every = 1000;
let shown = "";
let busy = false;

// The link's word is given away once, for a key that this tab keeps.
async function open() {
  const word = location.hash.slice(1);
  if (!word) return;
  history.replaceState(null, "", location.pathname);
  try {
    const got = await ask("POST", "open", { word });
    sessionStorage.setItem(keyName, got.key);
  } catch (err) {
    if (!sessionStorage.getItem(keyName)) throw err;
  }
}

async function ask(method, what, body) {
  const headers = { Authorization: "Bearer " + (sessionStorage.getItem(keyName) || "") };
  if (method === "POST") headers["Content-Type"] = "application/json";
  const patience = new AbortController();
  const timer = setTimeout(() => patience.abort(), 20000);
  try {
    const answer = await fetch("/api/" + what, { method, headers, body: body && JSON.stringify(body), signal: patience.signal, cache: "no-store", credentials: "omit" });
    const out = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(out.error), { refused: answer.status });
    return out;
  } finally {
    clearTimeout(timer);
  }
}

function put(id, text) {
  // Only what changed is touched: screen readers read it anew.
  if ($(id).textContent !== text) $(id).textContent = text;
}

function line(parent, text, name) {
  if (!text) return;
  const p = document.createElement("p");
  p.textContent = text;
  if (name) p.className = name;
  parent.append(p);
}

function list(into, entries, none, fill) {
  into.replaceChildren();
  for (const e of entries) {
    const li = document.createElement("li");
    fill(li, e);
    into.append(li);
  }
  if (entries.length === 0 && none) {
    const li = document.createElement("li");
    li.className = "quiet";
    li.textContent = none;
    into.append(li);
  }
}

function notice(text) {
  put("notice", text);
  $("notice").hidden = !text;
}

function show(v) {
  const text = JSON.stringify(v);
  if (text === shown) return;
  shown = text;
  document.title = v.headline + " · Offpeak";
  $("state").dataset.state = v.state;
  put("node", v.name ? v.name : v.node);
  put("headline", v.headline);
  put("detail", v.detail);
  put("hub", v.hub ? "Hub: " + v.hub : "");
  const here = document.activeElement;
  const rests = v.paused || v.draining;
  $("pausing").hidden = v.paused;
  $("resuming").hidden = !rests;
  // Who pressed a button that went finds the other under their fingers.
  if ($("pausing").contains(here) && $("pausing").hidden) $("resume").focus();
  if (here === $("resume") && $("resuming").hidden) $("pause").focus();
  list($("jobs"), v.jobs, "Nothing. " + (v.running ? "" : "No agent runs."), (li, j) => {
    line(li, j.title, "title");
    line(li, "For " + j.for + (j.since ? ", since " + j.since : ""));
    line(li, j.text, "quiet");
  });
  put("today", v.earnings.known ? v.earnings.today : "–");
  put("week", v.earnings.known ? v.earnings.week : "–");
  put("total", v.earnings.known ? v.earnings.total : "–");
  put("earnings-note", (v.earnings.known ? "Credits, " : "") + v.earnings.note + ".");
  list($("devices"), v.devices, "None that this agent offers.", (li, d) => {
    line(li, d.name, "title");
    line(li, "Temperature " + d.temperature + ", in use " + d.use + (d.power ? ", " + d.power : ""));
    line(li, "Memory " + d.memory + ": " + d.offered + " offered to jobs, " + d.foreign + " held by others", "quiet");
    line(li, d.throttled, "forbids");
  });
  put("yield", v.yield[0].toUpperCase() + v.yield.slice(1) + ".");
  list($("rules"), v.rules, "Not looked at.", (li, r) => {
    line(li, r.name, "title");
    line(li, r.seen + ": " + r.effect, r.forbids ? "forbids" : "");
    line(li, r.unknown && "Can't be seen: " + r.unknown, "quiet");
  });
  list($("ended"), v.ended, "None yet.", (li, e) => {
    line(li, e.title, "title");
    line(li, e.end);
    line(li, e.when + ", ran " + e.ran + ", for " + e.for, "quiet");
  });
  for (const [id, entries] of [["problems", v.problems], ["blocked", v.blocked]]) {
    $(id).hidden = entries.length === 0;
    list($(id).querySelector("ul"), entries, "", (li, e) => { li.textContent = e; });
  }
}

function enable(on) {
  for (const b of document.querySelectorAll("button")) b.disabled = !on;
}

async function order(what, body) {
  if (busy) return;
  busy = true;
  // Not disabled: a button that is loses the keyboard's focus.
  $("state").setAttribute("aria-busy", "true");
  try {
    const v = await ask("POST", what, body);
    notice("");
    show(v);
  } catch (err) {
    notice("It did not work: " + err.message);
  } finally {
    busy = false;
    $("state").removeAttribute("aria-busy");
  }
}

async function look() {
  if (!busy && !document.hidden) {
    try {
      const v = await ask("GET", "status");
      if (!busy) {
        notice("");
        enable(true);
        show(v);
      }
    } catch (err) {
      shown = "";
      if (!err.refused) notice("The command that serves this page has ended, or does not answer. What is shown is old.");
      else notice(err.message);
      if (err.refused === 401) {
        enable(false);
        put("headline", "This page is not open");
        return;
      }
    }
  }
  setTimeout(look, every);
}

$("pause").addEventListener("click", () => order("pause", {}));
$("pause-hour").addEventListener("click", () => order("pause", { for: "1h" }));
$("pause-tomorrow").addEventListener("click", () => order("pause", { until: "tomorrow" }));
$("resume").addEventListener("click", () => order("resume", {}));

open().then(look, (err) => { notice(err.message); put("headline", "This page is not open"); });
