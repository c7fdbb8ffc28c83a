// Chats in the browser's own storage. Knows what a chat is; nothing of the page.
//
// A chat: {id, title, changed (ms since 1970), messages}. A message: {role, content}; the user's with `images` (data
// URLs); an answer with `reasoning`, `drafted` (see drafts.js), a `note` of what it cost, `end` (stop, length, stopped,
// failed, or null while it is written) and the `reason` of an end that is not "stop".

const opened = new Promise((resolve, reject) => {
  const asked = indexedDB.open("pymtp", 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore("chats", { keyPath: "id" });
  asked.onsuccess = () => resolve(asked.result);
  asked.onerror = () => reject(asked.error);
});
opened.catch(() => {}); // whoever needs it hears of it

async function request(mode, act) {
  const transaction = (await opened).transaction("chats", mode);
  const asked = act(transaction.objectStore("chats"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

export function make() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, title: "", changed: 0, messages: [] };
}

/** An answer of which nothing came yet. */
export function makeAnswer() {
  return { role: "assistant", content: "", reasoning: "", drafted: { content: "", reasoning: "" }, end: null };
}

/** All chats, the newest first. */
export async function list() {
  const found = await request("readonly", (store) => store.getAll());
  return found.sort((a, b) => b.changed - a.changed);
}

/** The chat with this id, or undefined. */
export const find = (id) => request("readonly", (store) => store.get(id));

/** Store a chat. Throws if the browser has no room for it. */
export const put = (chat) => request("readwrite", (store) => store.put(chat));

export const remove = (id) => request("readwrite", (store) => store.delete(id));

/** All chats as the text of a file. */
export async function exported() {
  return JSON.stringify({ chats: await list() }, null, 1);
}

/** Store the chats of an exported file that are not newer here; returns how many. Throws if it is another file. */
export async function imported(text) {
  const here = new Map((await list()).map((chat) => [chat.id, chat.changed]));
  const newer = read(text).filter((chat) => !(here.get(chat.id) > chat.changed));
  for (const chat of newer) await put(chat);
  return newer.length;
}

function read(text) {
  try {
    return JSON.parse(text).chats.filter(({ id, messages }) => id && messages.length);
  } catch {
    throw new Error("this is not a file of exported chats");
  }
}
