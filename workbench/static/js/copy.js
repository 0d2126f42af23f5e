// Puts a copy button behind every element that has data-copy. Without this
// script the text can still be selected; nothing else depends on it.

/** @param {HTMLElement} element */
function addButton(element) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  const said = element.title || element.textContent.trim();
  button.setAttribute("aria-label", `Copy ${said.slice(0, 60)}`);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(element.dataset.copy || element.textContent.trim());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  element.after(button);
}

/** @param {ParentNode} root */
function addButtons(root) {
  if (!navigator.clipboard) return; // only secure origins have one
  for (const element of root.querySelectorAll("[data-copy]:not([data-copy-ready])")) {
    element.dataset.copyReady = "";
    addButton(element);
  }
}

addButtons(document);
document.addEventListener("htmx:afterSettle", () => addButtons(document));
