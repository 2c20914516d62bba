#include "daemon/metrics/http_request.h"

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

// Up to the end of a line, which is taken off `rest`; false: there is none.
bool TakeLine(absl::string_view* rest, absl::string_view* line) {
  const size_t end = rest->find('\n');
  if (end == absl::string_view::npos) return false;
  *line = absl::StripSuffix(rest->substr(0, end), "\r");
  rest->remove_prefix(end + 1);
  return true;
}

bool IsToken(absl::string_view text) {
  return !text.empty() && absl::c_all_of(text, [](unsigned char each) {
    return absl::ascii_isgraph(each) && each != ':';
  });
}

bool ReadRequestLine(absl::string_view line, HttpRequest* request) {
  const size_t first = line.find(' ');
  if (first == absl::string_view::npos) return false;
  request->method = line.substr(0, first);
  line.remove_prefix(first + 1);
  const size_t second = line.find(' ');
  if (second == absl::string_view::npos) return false;
  request->path = line.substr(0, second);
  line.remove_prefix(second + 1);
  request->path = request->path.substr(0, request->path.find('?'));
  return IsToken(request->method) && absl::StartsWith(request->path, "/") &&
         (line == "HTTP/1.1" || line == "HTTP/1.0");
}

bool ReadHeader(absl::string_view line, HttpRequest* request) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return false;
  const absl::string_view name = line.substr(0, colon);
  if (!IsToken(name)) return false;
  if (!absl::EqualsIgnoreCase(name, "Host")) return true;
  if (request->has_host) return false;
  request->has_host = true;
  request->host = absl::StripAsciiWhitespace(line.substr(colon + 1));
  return true;
}

}  // namespace

HttpHead ReadHttpHead(absl::string_view bytes, HttpRequest* request) {
  *request = HttpRequest();
  absl::string_view line;
  if (!TakeLine(&bytes, &line)) return HttpHead::kPartial;
  if (!ReadRequestLine(line, request)) return HttpHead::kWrong;
  while (true) {
    if (!TakeLine(&bytes, &line)) return HttpHead::kPartial;
    if (line.empty()) return HttpHead::kWhole;
    if (!ReadHeader(line, request)) return HttpHead::kWrong;
  }
}

bool IsLoopbackHost(absl::string_view host) {
  for (const absl::string_view each : {"localhost", "127.0.0.1", "[::1]"}) {
    absl::string_view rest = host;
    if (!absl::StartsWithIgnoreCase(rest, each)) continue;
    rest.remove_prefix(each.size());
    if (rest.empty()) return true;
    if (!absl::ConsumePrefix(&rest, ":")) return false;
    return !rest.empty() && absl::c_all_of(rest, absl::ascii_isdigit);
  }
  return false;
}

}  // namespace terrace
