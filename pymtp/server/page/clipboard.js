// Copies text, and says so on the button that was pressed.

/** Copy `text`; `button` says whether it worked. */
export async function copy(text, button) {
  const label = button.textContent;
  button.textContent = (await toClipboard(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = label), 1500);
}

async function toClipboard(text) {
  // pages that came by plain HTTP from another machine have no navigator.clipboard
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const put = (event) => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
  };
  document.addEventListener("copy", put, { once: true });
  return document.execCommand("copy");
}
