// Search on pages that are opened from disk: browsers start no Worker from a file: page, so an iframe stands in.
// The theme's worker waits for importScripts, which may therefore load one script after another.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const base = new URL(url, document.baseURI);
      const load = (source) =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script");
          script.onload = done;
          script.onerror = failed;
          script.src = new URL(source, base);
          inside.document.body.append(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      inside.postMessage = (data) => setTimeout(() => this.receive(data));
      this.loaded = load(base);
    }

    receive(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.loaded.then(() => inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
