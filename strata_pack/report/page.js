"use strict";
(() => {
  const checks = [...document.querySelectorAll(".check")];
  const buttons = [...document.querySelectorAll(".filter")];
  const find = document.getElementById("find");
  const shown = document.getElementById("shown");
  let status = "";

  const apply = () => {
    const words = find.value.trim().toLowerCase();
    let visible = 0;
    for (const check of checks) {
      const fits = (!status || check.dataset.status === status) &&
        (!words || check.firstElementChild.textContent.toLowerCase().includes(words));
      check.hidden = !fits;
      visible += fits;
    }
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.status === status));
    }
    shown.textContent = `${visible} of ${checks.length} shown`;
  };

  for (const button of buttons) {
    button.addEventListener("click", () => {
      status = status === button.dataset.status ? "" : button.dataset.status;
      apply();
    });
  }
  find.addEventListener("input", apply);
  apply();
})();
