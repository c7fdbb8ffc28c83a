// Images of the message that is being written: picked, pasted or dropped.

import { make } from "./elements.js";

const list = document.getElementById("images");
const pick = document.getElementById("pick");
const SIDE_MAX = 4096; // pixels; a server refuses prompts with more than 64 Mi of them

/** Data URLs of the images. */
export const current = () => [...list.querySelectorAll("img")].map((image) => image.src);

/** Show these images in place of those that are there. */
export function set(urls) {
  list.replaceChildren(...urls.map(item));
}

/** Take images from now on, if the model does; `complain` hears why one was not taken. */
export function begin(takesImages, complain) {
  pick.hidden = !takesImages;
  const add = async (files) => {
    for (const file of files) {
      if (!takesImages) return complain("This model takes no images: the server has no --mmproj.");
      const fail = () => complain(`${file.name} is not an image that this browser can read.`);
      await read(file).then((url) => list.append(item(url)), fail);
    }
  };
  const input = pick.querySelector("input");
  input.onchange = () => add([...input.files]).then(() => (input.value = ""));
  const take = (event, { files, types }) => {
    if (!types.includes("Files") || types.includes("text/plain")) return; // a table is copied as a picture, too
    event.preventDefault();
    add([...files]);
  };
  document.onpaste = (event) => take(event, event.clipboardData);
  document.ondrop = (event) => take(event, event.dataTransfer);
  document.ondragover = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
}

/** A data URL of an image, drawn again: upright, of a kind that servers read, without where it was taken. */
async function read(file) {
  const image = await createImageBitmap(file);
  const scale = Math.min(1, SIDE_MAX / Math.max(image.width, image.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(file.type === "image/jpeg" ? "image/jpeg" : "image/png", 0.92);
}

function item(url) {
  const button = make("button", ["Remove image"], { type: "button", onclick: () => entry.remove() });
  const entry = make("li", [make("img", [], { src: url, alt: "" }), button]);
  return entry;
}
