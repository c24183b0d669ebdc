"use strict";
// The page of a run replaces its body when the server sends a new one; forms of class `action` ask the job for something.

const live = document.getElementById("live");
const said = document.getElementById("said");

function say(text) { said.textContent = text; }

function replaceBody(html) {
  const open = new Set([...live.querySelectorAll("details[open]")].map((each) => each.querySelector("summary").textContent.replace(/\d+/g, "")));
  const zooms = [...live.querySelectorAll(".timeline input:checked")].map((each) => each.id);
  const places = [...live.querySelectorAll(".timeline .scroll")].map((each) => each.scrollLeft);
  live.innerHTML = html;
  for (const id of zooms) { const each = document.getElementById(id); if (each) each.checked = true; }
  [...live.querySelectorAll(".timeline .scroll")].forEach((each, i) => { each.scrollLeft = places[i] ?? 0; });
  for (const each of live.querySelectorAll("details")) {
    if (open.has(each.querySelector("summary").textContent.replace(/\d+/g, ""))) each.open = true;
  }
}

if (live && live.dataset.events) {
  const events = new EventSource(live.dataset.events + "?seen=" + encodeURIComponent(live.dataset.digest));
  events.addEventListener("body", (event) => { replaceBody(event.data); if (said.dataset.lost) { say(""); delete said.dataset.lost; } });
  events.addEventListener("end", () => { events.close(); document.getElementById("actions")?.remove(); say("The job has ended."); });
  events.addEventListener("error", () => { said.dataset.lost = "yes"; say("No connection: trying again."); });
}

for (const form of document.querySelectorAll("form[data-action]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!window.confirm(form.dataset.question)) return;
    const button = form.querySelector("button");
    button.disabled = true;
    say("Asking the job...");
    try {
      const asked = Object.fromEntries([...form.elements].filter((each) => each.name && each.value !== each.defaultValue || each.required).map((each) => [each.name, each.value]));
      const answer = await fetch(form.dataset.action, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked) });
      const told = await answer.json();
      say(told.error ?? told.answer);
    } catch (error) {
      say("The job could not be asked: " + error.message);
    }
    button.disabled = false;
  });
}
