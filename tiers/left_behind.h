// What a transfer that never ended may still use, kept for as long as the
// process lives: on purpose, so that no leak is told.
#pragma once

#include <memory>
#include <utility>

// Of the leak sanitiser, null without it.
extern "C" void __lsan_ignore_object(const void* object) __attribute__((weak));

namespace terrace {

template <typename T>
void LeaveBehind(std::shared_ptr<T> object) {
  const auto* const left = new std::shared_ptr<T>(std::move(object));
  if (__lsan_ignore_object != nullptr) __lsan_ignore_object(left);
}

}  // namespace terrace
