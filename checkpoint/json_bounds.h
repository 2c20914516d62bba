// What JSON that others wrote may be, before anything is made of it. Pure
// functions.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace terrace {

// InvalidArgument: the text is nested deeper than 8, or has more objects, lists
// and keys than a list of tensors has in as many bytes (three and four in 50),
// so that parsed it would take many times its size; or an object has a key
// twice, which is named: parsers differ in which value they take, so that one
// text would be two things. Reads no further than to the first of these. What
// is no JSON is OK up to where it ends to be.
absl::Status CheckJsonBounds(absl::string_view json);

}  // namespace terrace
