// Shows the API's description. Requests tried here carry the form token of this page.
const place = document.getElementById("swagger");
const token = document.querySelector("input[name=csrfmiddlewaretoken]");

if (document.documentElement.dataset.theme === "dark" ||
    (document.documentElement.dataset.theme !== "light" &&
     matchMedia("(prefers-color-scheme: dark)").matches)) {
  document.documentElement.classList.add("dark-mode");
}

// What Swagger UI leaves out for those who don't see the page.
function tell() {
  for (const main of place.querySelectorAll("main")) {
    main.setAttribute("role", "group");
    main.setAttribute("aria-label", "Operations");
  }
  for (const select of place.querySelectorAll("select:not([aria-label])")) {
    const row = select.closest("[data-param-name]");
    select.setAttribute("aria-label", row ? row.dataset.paramName : "Kind of content");
  }
  for (const example of place.querySelectorAll("pre:not([tabindex])")) {
    example.tabIndex = 0;
  }
}
new MutationObserver(tell).observe(place, { childList: true, subtree: true });

window.SwaggerUIBundle({
  domNode: place,
  url: place.dataset.schema,
  docExpansion: "none",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  supportedSubmitMethods: ["get", "put", "post", "delete", "patch"],
  validatorUrl: null,
  requestInterceptor: (request) => {
    if (token && new URL(request.url, location.href).origin === location.origin) {
      request.headers["X-CSRFToken"] = token.value;
    }
    return request;
  },
});
