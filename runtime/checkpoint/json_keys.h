// The keys of JSON that others wrote. Pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace terrace {

// Parsers differ in which value of a key they take that an object has twice, so
// that one text would be two things. InvalidArgument: it has one, which is
// named. What is no JSON is OK up to where it ends to be. Nested as deeply as
// it likes.
absl::Status CheckKeysDiffer(absl::string_view json);

}  // namespace terrace
