// What the pages of the console do by themselves: they ask for what is new, go by keys, and switch light and dark.
// Without it every page can be read and every link followed.

const content = document.getElementById("content");
const trouble = document.getElementById("trouble");

// ------------------------------------------------------------------------------------------------- what is new
//
//   the page is seen --> LISTENING --"changed"--> ask for what is inside, put it in place of the old --> LISTENING
//                           '--hidden--> closed (a browser has but six connections to a server for all of its tabs)

let stream = null;
let asking = false;
let again = false;

function say(text) {
  trouble.textContent = text;
  trouble.hidden = !text;
  document.body.classList.toggle("away", Boolean(text));
}

async function refresh() {
  // Whoever copies or writes something is not to be disturbed.
  const selection = document.getSelection();
  const busy = content.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
  if (busy || (selection && !selection.isCollapsed && content.contains(selection.anchorNode))) return;
  if (asking) { again = true; return; }
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Part": "1" } });
    if (answer.status === 401) { location.reload(); return; }
    if (answer.ok) replace(await answer.text());
  } catch {
    say("The console does not answer. What is shown may be old.");
  } finally {
    asking = false;
    if (again) { again = false; refresh(); }
  }
}

function replace(html) {
  const scrolled = [...content.querySelectorAll(".wide, .raw, .runs")].map((one) => [one.scrollLeft, one.scrollTop]);
  const opened = [...content.querySelectorAll("details")].map((one) => one.open);
  const row = rows().findIndex((one) => one.classList.contains("focus"));
  const focused = [...content.querySelectorAll("a, button, summary")].indexOf(document.activeElement);
  // Parsed apart, where nothing that it might name is fetched or run; it comes from this server, escaped.
  const parsed = new DOMParser().parseFromString(html, "text/html");
  content.replaceChildren(...parsed.body.childNodes);
  content.querySelectorAll(".wide, .raw, .runs").forEach((one, at) => {
    if (scrolled[at]) [one.scrollLeft, one.scrollTop] = scrolled[at];
  });
  content.querySelectorAll("details").forEach((one, at) => { if (opened[at]) one.open = true; });
  if (row >= 0) rows()[row]?.classList.add("focus");
  if (focused >= 0) content.querySelectorAll("a, button, summary")[focused]?.focus({ preventScroll: true });
  reach();
}

// What scrolls and has nothing in it to go to is gone to itself, so that keys scroll it.
function reach() {
  for (const one of content.querySelectorAll(".wide, .raw, .runs, fieldset")) {
    const scrolls = one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight;
    if (scrolls && !one.querySelector("a, button, input, select, textarea, summary")) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  }
}
addEventListener("resize", reach);
reach();

const AGAIN_MS = 5000;

function listen() {
  const path = document.body.dataset.live;
  if (!path || stream || document.hidden) return;
  stream = new EventSource(path);
  stream.addEventListener("changed", (event) => { say(event.data); refresh(); });
  stream.onerror = () => {
    say("The console does not answer. What is shown may be old.");
    // What broke off is asked for again by the browser; what was refused, by a proxy or after a restart, never is.
    if (stream?.readyState !== EventSource.CLOSED) return;
    stream = null;
    setTimeout(() => { listen(); refresh(); }, AGAIN_MS);
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); stream = null; } else { listen(); refresh(); }
});
listen();

// ------------------------------------------------------------------------------------------------------- moment

const slider = document.querySelector("#moment input[type=range]");
slider?.addEventListener("input", () => {
  const state = document.querySelector("#moment .state");
  state.textContent = `as of ${new Date(slider.value * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
});
slider?.addEventListener("change", () => slider.form.requestSubmit());

// -------------------------------------------------------------------------------------------------- light, dark

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
}
document.getElementById("theme")?.addEventListener("click", switchTheme);

// --------------------------------------------------------------------------------------------------------- keys

const keys = document.getElementById("keys");
const rows = () => [...content.querySelectorAll("tr[data-href]")];
let after = "";

document.getElementById("help")?.addEventListener("click", () => keys.showModal());

function step(by) {
  const all = rows();
  if (!all.length) return;
  const old = all.findIndex((one) => one.classList.contains("focus"));
  const next = all[Math.max(0, Math.min(all.length - 1, old + by))];
  all[old]?.classList.remove("focus");
  next.classList.add("focus");
  next.scrollIntoView({ block: "nearest" });
}

const pressed = {
  j: () => step(1),
  k: () => step(-1),
  n: () => content.querySelector("a[rel=next]")?.click(),
  p: () => content.querySelector("a[rel=prev]")?.click(),
  t: switchTheme,
  "?": () => keys.showModal(),
  "/": () => content.querySelector("[data-search]")?.focus(),
  Enter: () => { const row = content.querySelector("tr.focus"); if (row) location.href = row.dataset.href; },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.key === "Enter" && event.target.matches("a, button, summary")) return;
  if (after === "g") {
    after = "";
    document.querySelector(`header nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  if (event.key === "g") { after = "g"; setTimeout(() => { after = ""; }, 1000); return; }
  if (pressed[event.key]) { event.preventDefault(); pressed[event.key](); }
});

content.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) { copyFrom(copy); return; }
  if (event.target.closest("a, button, input, summary, label") || !document.getSelection().isCollapsed) return;
  const row = event.target.closest("tr[data-href]");
  if (row) location.href = row.dataset.href;
});

// ------------------------------------------------------------------------------------------------------ answers
//
// A form that is checked as it is filled in: what stands in slots is replaced, and nothing of what was written.

const asked = content.querySelector("form[data-check]");
let checks = 0;
asked?.addEventListener("change", async () => {
  const mine = ++checks;
  const answer = await fetch(asked.action, {
    method: "POST", body: new URLSearchParams(new FormData(asked)), headers: { "X-Part": "1" },
  });
  if (!answer.ok || mine !== checks) return;
  const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const slot of parsed.querySelectorAll("[data-slot]")) document.getElementById(slot.id)?.replaceWith(slot);
});

async function copyFrom(button) {
  const answer = await fetch(button.dataset.copy);
  // Browsers have none over plain HTTP, but for this machine: then it is shown, to be copied by hand.
  if (!navigator.clipboard) { location.assign(button.dataset.copy); return; }
  await navigator.clipboard.writeText(await answer.text());
  button.textContent = "Copied";
}
