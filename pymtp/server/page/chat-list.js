// The list of chats: opens, deletes, exports and imports them.

import * as chats from "./chats.js";
import { make } from "./elements.js";

const panel = document.getElementById("chats");
const entries = panel.querySelector("ul");

/** List the chats whenever the panel is opened. `onOpen` gets a chat, `onDelete` one that is gone, `say` a sentence. */
export function begin({ onOpen, onDelete, say }) {
  const list = async () => {
    const found = await chats.list().catch(() => []);
    entries.replaceChildren(...found.map(entry));
  };
  const entry = (chat) => {
    const open = button(chat.title, () => {
      panel.hidePopover();
      onOpen(chat);
    });
    const remove = button("Delete", async () => {
      if (!confirm(`Delete "${chat.title}"?`)) return;
      await chats.remove(chat.id);
      onDelete(chat);
      list();
    });
    remove.ariaLabel = `Delete ${chat.title}`;
    return make("li", [open, remove]);
  };
  panel.ontoggle = (event) => event.newState === "open" && list();
  document.getElementById("export").onclick = async () => download("pymtp-chats.json", await chats.exported());
  document.getElementById("import").onchange = async ({ target }) => {
    const text = await target.files[0].text();
    target.value = "";
    const done = (n) => say(`${n} chats imported.`);
    await chats.imported(text).then(done, (error) => say(`Nothing was imported: ${error.message}`));
    list();
  };
}

const button = (text, onclick) => make("button", [text], { type: "button", onclick });

function download(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  make("a", [], { href, download: name }).click();
  URL.revokeObjectURL(href);
}
