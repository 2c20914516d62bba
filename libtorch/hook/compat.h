// This file has the differences between the versions of LibTorch that the hook
// knows, 2.11 to 2.15: how a storage that is not to be used says so.
#pragma once

#ifndef NDEBUG
#error "LibTorch's wheels are built with NDEBUG, and what includes them must be"
#endif

#include <c10/core/StorageImpl.h>
#include <torch/headeronly/version.h>

#include <string>

namespace terrace {

// True where storages have a message while their bytes are away: from 2.12 on,
// where LibTorch has a call that takes a message off.
inline constexpr bool kTellsAway =
    TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12;

// From now on every access to the storage's bytes throws this text, except the
// accesses without checks. No memory is released.
void Arm(c10::StorageImpl& storage, std::string text);

// Takes the message off, if there is one.
void Disarm(c10::StorageImpl& storage);

}  // namespace terrace
