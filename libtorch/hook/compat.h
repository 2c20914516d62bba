// This file has the differences between the versions of LibTorch that the hook
// knows, 2.11 to 2.15. The code chooses by what a storage can do. The storage
// is a template parameter, so that tests have one of each kind.
#pragma once

#ifndef NDEBUG
#error "LibTorch's wheels are built with NDEBUG, and what includes them must be"
#endif

#include <optional>
#include <string>
#include <utility>

namespace terrace {

// True where a message on a storage can be taken off again: from 2.12 on.
template <typename Storage>
constexpr bool kCanDisarm = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

// From now on every access to the storage's bytes throws this text, except the
// accesses without checks. No memory is released.
template <typename Storage>
void Arm(Storage& storage, std::string text) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::optional<std::string>(std::move(text)));
}

// Takes the message off. Returns false where LibTorch cannot do that: the
// storage stays armed for ever.
template <typename Storage>
bool Disarm(Storage& storage) {
  if constexpr (kCanDisarm<Storage>) {
    storage.clear_data_ptr_access_error_msg_();
    return true;
  }
  return false;
}

}  // namespace terrace
