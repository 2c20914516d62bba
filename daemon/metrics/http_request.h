// The head of a request of HTTP/1.x, as far as a responder of a few plain pages
// looks at it. Nothing is copied or allocated.
//
// Functions are thread-safe.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace terrace {

struct HttpRequest {
  absl::string_view method;
  absl::string_view path;  // of the target, without its question
  absl::string_view host;  // of the Host line
  bool has_host = false;
};

enum class HttpHead : uint8_t { kPartial, kWrong, kWhole };

// The head at the beginning of `bytes`, which the request points into. Wrong:
// it is none, or it has two Host lines.
HttpHead ReadHttpHead(absl::string_view bytes, HttpRequest* request);

// Whether a Host line names this host: localhost, 127.0.0.1 or [::1], with a
// port or without. A page of another site that has its name lead here, by its
// own name server, is known by the Host that it sends.
bool IsLoopbackHost(absl::string_view host);

}  // namespace terrace
