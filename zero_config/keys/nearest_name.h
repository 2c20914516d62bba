// "Did you mean": the known name that is nearest to what was written.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace terrace {

// The one of `known` with the fewest edits (insert, delete, replace, swap of
// neighbours; letter case is free), or "" when that takes more than so many.
std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& known,
                        size_t most_edits);

// Whether none but a known name can have been meant: two edits at most, and of
// a short one fewer.
bool IsNearMiss(absl::string_view name, const std::vector<std::string>& known);

// "; did you mean \"x\"?", or "" when more than a third of the letters differ.
std::string DidYouMean(absl::string_view name,
                       const std::vector<std::string>& known);

// What to write instead of a name that is not known: DidYouMean, else the known
// ones where they fit a line, else where they are listed.
std::string Suggestion(absl::string_view name,
                       const std::vector<std::string>& known);

}  // namespace terrace
