// What LibTorch says of work that fails.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace terrace {

// What the work throws, without its backtrace; "": nothing.
template <typename Work>
std::string ThrownBy(const Work& work) {
  try {
    work();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

}  // namespace terrace
