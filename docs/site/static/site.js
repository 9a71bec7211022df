// SPDX-License-Identifier: BSD-3-Clause
// Below file:// a page cannot read others, so the search shows titles without their text.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

document.addEventListener("DOMContentLoaded", () => {
  const list = document.querySelector("select.versions");
  if (!list || typeof LOCKSTEP_VERSIONS === "undefined") return;
  const here = list.dataset.version;
  for (const version of LOCKSTEP_VERSIONS) list.add(new Option(`Version ${version}`, version, false, version === here));
  list.hidden = false;
  list.addEventListener("change", () => { location.href = `${list.dataset.root}../${list.value}/index.html`; });
});
