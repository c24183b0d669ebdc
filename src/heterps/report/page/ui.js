"use strict";
// The page of a run replaces its body, or the section Now of it, when the server sends a new one; forms with `data-action` ask the job for something.
// The what-if page asks for a plan at each change of a field, and for those next to it and the frontier once nothing changes.

const live = document.getElementById("live");
const said = document.getElementById("said");

function say(text) { said.textContent = text; }

// What a reader did to the body: what is open, how far it is moved, where the keyboard is. Numbers in texts change.
const WIDE = ".scroll, pre", REACHED = "summary, input, a[href], [tabindex]";

function keyOf(details) { return details.querySelector("summary").textContent.replace(/[\d,]+|s\b/g, ""); }

function keepReader(change) {
  const open = new Set([...live.querySelectorAll("details[open]")].map(keyOf));
  const zooms = [...live.querySelectorAll(".timeline input:checked")].map((each) => each.id);
  const places = [...live.querySelectorAll(WIDE)].map((each) => each.scrollLeft);
  const reached = [...live.querySelectorAll(REACHED)].indexOf(document.activeElement);
  change();
  for (const id of zooms) { const each = document.getElementById(id); if (each) each.checked = true; }
  for (const each of live.querySelectorAll("details")) { if (open.has(keyOf(each))) each.open = true; }
  [...live.querySelectorAll(WIDE)].forEach((each, i) => { each.scrollLeft = places[i] ?? 0; });
  if (reached >= 0) live.querySelectorAll(REACHED)[reached]?.focus({ preventScroll: true });
}

// A stream ends with what was new, and the browser asks again a second later: no page holds one of the six connections
// that a browser has for all windows of a host. So a stream is lost only if it ends before it has begun.
if (live && live.dataset.events) {
  let events = null, seen = live.dataset.digest, hasBegun = false, isLost = false, hasEnded = false;
  const told = {
    body: (event) => { seen = event.lastEventId; keepReader(() => { live.innerHTML = event.data; }); },
    now: (event) => {
      const part = live.querySelector(".now");
      if (part) keepReader(() => { part.outerHTML = event.data; });
    },
    end: () => { hasEnded = true; events.close(); document.getElementById("actions")?.remove(); say("The job has ended."); },
    open: () => {
      hasBegun = true;
      if (isLost) say("");
      isLost = false;
    },
    error: () => {
      if (!hasBegun) {
        isLost = true;
        say(events.readyState === EventSource.CLOSED ? "This run is not shown here any more." : "No connection: trying again.");
      }
      hasBegun = false;
    },
  };
  const follow = () => {
    events?.close();
    if (document.hidden || hasEnded) return;  // a page that nobody sees asks for nothing
    hasBegun = false;
    events = new EventSource(live.dataset.events + "?seen=" + encodeURIComponent(seen));
    for (const [kind, hear] of Object.entries(told)) events.addEventListener(kind, hear);
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}

for (const form of document.querySelectorAll("form[data-action]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!window.confirm(form.dataset.question)) return;
    const button = form.querySelector("button");
    button.disabled = true;
    say("Asking the job...");
    try {
      const asked = Object.fromEntries([...form.elements].filter((each) => each.name).map((each) => [each.name, each.value]));
      const answer = await fetch(form.dataset.action, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
      const told = await answer.json();
      say(told.error ?? told.answer);
    } catch (error) {
      say("The job could not be asked: " + error.message);
    }
    button.disabled = false;
  });
}

// --- what if ---------------------------------------------------------------------------------------------------------

const question = document.getElementById("question");
const parts = ["plan", "next", "frontier"].map((id) => document.getElementById(id));
const searches = document.getElementById("searches"), searchButton = document.getElementById("search");
let isAsking = false, isChanged = false, search = null, longSearch = null;

function addSlider(field) {
  const slider = document.createElement("input"), most = Number(field.dataset.most);
  const show = () => { slider.value = field.value === "" ? most : field.value; };
  Object.assign(slider, { type: "range", min: field.dataset.whole ? 0 : most / 200, max: most, step: field.dataset.whole ? 1 : most / 200 });
  slider.setAttribute("aria-label", field.getAttribute("aria-label"));
  slider.addEventListener("input", () => { field.value = String(Number(Number(slider.value).toPrecision(4))); });
  field.addEventListener("input", show);
  field.after(slider);
  show();
}

async function askWhatIf() {
  isChanged = true;
  search?.abort();
  longSearch?.abort();
  searches.classList.add("old");
  if (isAsking) return;
  isAsking = true;
  while (isChanged) {
    isChanged = false;
    const asked = new URLSearchParams(new FormData(question));
    for (const part of parts) part.classList.add("old");
    for (const part of parts) {
      if (isChanged) break;
      search = part.id !== "plan" ? new AbortController() : null;
      if (!await showPart(part, asked, search)) break;
    }
  }
  isAsking = false;
}

async function searchByEveryMethod() {
  if (longSearch) { longSearch.abort(); return; }
  longSearch = new AbortController();
  searchButton.textContent = "Stop the search";
  say("Searching by every method: this takes up to half a minute.");
  await showPart(searches, new URLSearchParams(new FormData(question)), longSearch);
  searchButton.textContent = "Search by every method";
  say("");
  longSearch = null;
}

async function showPart(part, asked, aborter) {
  const refused = document.getElementById("refused");
  try {
    const told = await (await fetch("what-if/" + part.id + "?" + asked, { signal: aborter?.signal })).json();
    refused.textContent = told.error ?? "";
    if (told.html === undefined) return false;
    part.innerHTML = told.html;
    part.classList.remove("old");
    return true;
  } catch (error) {
    if (error.name !== "AbortError") refused.textContent = "The page's server could not be asked: " + error.message;
    return false;
  }
}

if (question) {
  for (const field of question.querySelectorAll("input[data-most]")) addSlider(field);
  question.addEventListener("input", askWhatIf);
  question.addEventListener("submit", (event) => { event.preventDefault(); askWhatIf(); });
  searchButton.addEventListener("click", searchByEveryMethod);
  searchButton.hidden = false;
  askWhatIf();
}
