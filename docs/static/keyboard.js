"use strict";
// Code and tables that are wider than the page can be moved by the keyboard, too.
document.addEventListener("DOMContentLoaded", () => {
  for (const each of document.querySelectorAll("pre, .table-wrapper")) each.tabIndex = 0;
});
