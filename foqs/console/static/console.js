// Refreshing, keys and focus. Each page works without this file.
"use strict";
(() => {
  const EVERY_MS = 5000;
  const KEY = "foqs-live";
  const body = document.body;
  const live = () => document.getElementById("live");
  const stale = document.getElementById("stale");

  // ------------------------------------------------------------------ refreshing
  const button = document.getElementById("live-switch");
  let on = localStorage.getItem(KEY) !== "off";
  let asking = false;

  const show = () => {
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Live" : "Stopped";
    button.title = on ? "The page refreshes itself. Press to stop (l)" : "The page does not refresh itself. Press to start (l)";
  };
  const toggle = () => {
    on = !on;
    localStorage.setItem(KEY, on ? "on" : "off");
    show();
  };
  const selecting = () => {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && live().contains(selection.anchorNode);
  };
  const editing = () => {
    const active = document.activeElement;
    if (active !== null && live().contains(active) && active.matches("input, select, textarea")) return true;
    return live().querySelector("input:checked") !== null; // the rows that a user chose stay as they are
  };

  // A page that costs the hosts much does not refresh itself.
  if (button !== null && live()?.hasAttribute("hx-get")) {
    button.hidden = false;
    show();
    button.addEventListener("click", toggle);
    setInterval(() => {
      if (on && !asking && !document.hidden && !selecting() && !editing()) htmx.trigger(body, "foqs:refresh");
    }, EVERY_MS);
  }

  // With this header the browser gives a 304 to the page, which stays as it is.
  body.addEventListener("htmx:configRequest", (event) => {
    asking = true;
    event.detail.headers["If-None-Match"] = live().dataset.etag;
  });
  body.addEventListener("htmx:afterRequest", (event) => {
    asking = false;
    const status = event.detail.xhr.status;
    stale.hidden = status === 200 || status === 304;
    if (stale.hidden) {
      stale.dataset.since = "";
      return;
    }
    stale.dataset.since ||= new Date().toLocaleTimeString();
    stale.textContent =
      status === 401
        ? "Your session has ended. Open the page again to sign in."
        : status === 404
          ? `What the page shows has not existed since ${stale.dataset.since}.`
        : status === 0
          ? `The console does not answer since ${stale.dataset.since}: the page shows what was before.`
          : `The service does not answer since ${stale.dataset.since}: the page shows what was before.`;
  });

  // What a user opened or scrolled stays so over a swap. htmx keeps the focus of elements with an id.
  let open = [];
  let scrolled = [];
  body.addEventListener("htmx:beforeSwap", () => {
    open = [...document.querySelectorAll("#live details[open][id]")].map((one) => one.id);
    scrolled = [...document.querySelectorAll("#live .wide[id]")].map((one) => [one.id, one.scrollLeft]);
  });
  body.addEventListener("htmx:afterSwap", () => {
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, left] of scrolled) {
      const one = document.getElementById(id);
      if (one !== null) one.scrollLeft = left;
    }
  });

  // ------------------------------------------------------------------ rows
  document.documentElement.classList.add("scripts");
  body.addEventListener("change", (event) => {
    if (!event.target.matches("[data-all]")) return;
    for (const one of event.target.form.querySelectorAll("td input[type=checkbox]")) one.checked = event.target.checked;
  });

  // ------------------------------------------------------------------ forms
  // A double click sends one form.
  const ONCE_MS = 10000;
  body.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (Date.now() - (form.dataset.sent ?? 0) < ONCE_MS) event.preventDefault();
    else form.dataset.sent = Date.now();
  });

  // ------------------------------------------------------------------ back
  // A user who goes back may get a page as it was left, also after the end of the session.
  window.addEventListener("pageshow", async (event) => {
    if (!event.persisted || button === null) return;
    for (const form of document.forms) delete form.dataset.sent;
    document.documentElement.hidden = true;
    const answer = await fetch("/jobs", { headers: { "HX-Request": "true" } }).catch(() => null);
    const here = live()?.getAttribute("hx-get") ?? "/";
    if (answer?.status === 401) location.replace(`/login?next=${encodeURIComponent(here)}`);
    else document.documentElement.hidden = false;
  });

  // ------------------------------------------------------------------ keys
  const help = document.getElementById("help");
  const helpButton = document.getElementById("help-button");
  if (helpButton !== null) {
    helpButton.hidden = false;
    helpButton.addEventListener("click", () => help.showModal());
  }
  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (help === null || help.open) return;
    if (Date.now() - went < 1500) {
      went = 0;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link !== null) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    if (event.key === "g") went = Date.now();
    else if (event.key === "?") help.showModal();
    else if (event.key === "l" && !button.hidden) toggle();
    else if (event.key === "/") {
      const search = document.querySelector("[data-search]") ?? document.getElementById("ns");
      event.preventDefault();
      search.focus();
      search.select();
    }
  });
})();
