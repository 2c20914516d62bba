// The version of this library. A plain constant: compare it with what you
// were built against when you load Terrace at run time.
#pragma once

namespace terrace {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;
inline constexpr char kVersion[] = "0.1.0";

}  // namespace terrace
