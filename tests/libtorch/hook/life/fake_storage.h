// A storage without LibTorch: its bytes are a plain pointer, which nothing but
// its life and its word guards, so that the thread sanitiser sees whether they
// do. And a world of them: a window over the production mover, a registry.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/life/storage_lives.h"
#include "libtorch/hook/storage_registry.h"
#include "libtorch/hook/window/byte_window.h"
#include "tests/support/runtime_fixture.h"

namespace terrace {

class FakeStorage final : public StorageLife {
 public:
  // As a tensor that has it: `has_died` is its end.
  // `of`: the storage's own, if another hook has it as well.
  FakeStorage(std::string name, int64_t size_bytes, ByteWindow& window,
              const FakeStorage* of = nullptr)
      : StorageLife(std::move(name), of == nullptr ? this : of, size_bytes,
                    window),
        memory_(static_cast<size_t>(size_bytes)),
        data_(memory_.data()) {}

  std::shared_ptr<const void> keeper() const override { return nullptr; }
  bool expired() const override { return has_died; }
  std::byte* data() const override { return data_; }
  bool is_refused() const { return data_ == nullptr; }

  std::atomic<bool> has_died = false;
  // The thread that takes its bytes away has the last reference to it.
  StorageLives* ends_with_its_bytes = nullptr;

 private:
  bool Install(std::byte* where) override {
    data_ = where;
    return true;
  }
  bool TakeAway() override {
    data_ = nullptr;
    if (ends_with_its_bytes != nullptr) {
      has_died = true;
      MarkGone();
      ends_with_its_bytes->NoteDied(shared_from_this());
      ends_with_its_bytes->Sweep();
    }
    return true;
  }
  void Refuse(const std::string& /*text*/) override {}
  absl::Status MoveOut() override {
    memory_.assign(data_, data_ + size_bytes());
    data_ = memory_.data();
    return absl::OkStatus();
  }

  std::vector<std::byte> memory_;  // of its own
  std::byte* data_;
};

// As the net of operations is one, for one hook or several.
class FakeIndex final : public StorageIndex {
 public:
  bool Insert(StorageLife& storage) override {
    return registry_.Insert(storage.address(), &storage);
  }
  Ended Erase(std::shared_ptr<StorageLife> storage) override {
    registry_.Erase(storage->address());
    return registry_.Keep(std::move(storage));
  }
  const StorageRegistry& registry() const { return registry_; }

 private:
  StorageRegistry registry_;
};

class FakeHook {
 public:
  FakeHook(Runtime& runtime, FakeIndex& index, ByteWindowOptions options)
      : index_(index), window_(runtime, options), lives_(index, window_) {}

  ByteWindow& window() { return window_; }
  StorageLives& lives() { return lives_; }

  // As an operation of these: pinned, and brought, until the object's end. What
  // is not managed has its own bytes.
  std::unique_ptr<OperationPins> Begin(
      const std::vector<const FakeStorage*>& storages) {
    while (true) {
      auto pins = std::make_unique<OperationPins>();
      StorageLife* const unsettled = PinAll(storages, *pins);
      if (unsettled == nullptr) {
        if (pins->is_away()) pins->Bring("an operation");
        return pins;
      }
      pins.reset();
      OperationPins::AwaitLife(*unsettled);
    }
  }

 private:
  StorageLife* PinAll(const std::vector<const FakeStorage*>& storages,
                      OperationPins& pins) {
    for (const FakeStorage* const each : storages) {
      StorageLife* const found = index_.registry().Find(each->address());
      if (found != nullptr && !pins.Pin(*found)) return found;
    }
    return nullptr;
  }

  FakeIndex& index_;
  ByteWindow window_;
  StorageLives lives_;
};

}  // namespace terrace
