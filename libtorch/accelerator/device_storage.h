// LibTorch's storage as the place of a device's block: the block is the DataPtr
// inside the one StorageImpl. While the bytes are here it is the one that
// LibTorch's allocator made, with its own deleter, since that allocator ignores
// recorded streams of any other; while they are away it is null with a deleter
// of ours. Views, aliases and saved tensors all follow, and version counters
// stay.
//
// Where LibTorch can take a message off again, one is on while the bytes are
// away (compat.h). Only functions of StorageImpl that check nothing are used.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

// A device's memory whose blocks are LibTorch's. Thread-safe.
class TorchStreamedDevice : public StreamedDevice {
 public:
  virtual c10::Device device() const = 0;
  // The allocator's own deleter ends it: uses can be recorded.
  virtual bool Made(const c10::DataPtr& data) const = 0;
  virtual absl::Status RecordUse(const c10::DataPtr& data, StreamId stream) = 0;
};

// What such a memory's Allocate answers.
class DataPtrBlock final : public DeviceBlock {
 public:
  explicit DataPtrBlock(c10::DataPtr data) : data_(std::move(data)) {}
  std::byte* address() const override {
    return static_cast<std::byte*>(data_.get());
  }
  c10::DataPtr Release() { return std::move(data_); }

 private:
  c10::DataPtr data_;
};

class DeviceStorage final : public BlockPlace {
 public:
  // The storage is alive, with bytes that the memory made.
  DeviceStorage(std::string name, c10::StorageImpl& storage,
                TorchStreamedDevice& memory);
  ~DeviceStorage() override;

  // Never reused while this lives.
  const c10::StorageImpl* key() const { return key_; }

  bool is_gone() const override;
  std::byte* address() const override;
  bool Install(std::unique_ptr<DeviceBlock> block) override;
  bool Keep() override;
  std::unique_ptr<DeviceBlock> Take() override;
  void Settle() override { kept_.reset(); }
  absl::Status RecordUse(StreamId stream) override;
  bool Refuse(const std::string& text) override;
  void Forgive() override;

 private:
  // Of a null DataPtr, whose end is told here: nothing else ends with it, as it
  // may be in the midst of anything.
  struct Life {
    std::atomic<bool> is_over = false;
  };
  static void OnDeath(void* context);

  bool IsCold(const c10::StorageImpl& storage) const;
  // It is as this left it, warm or cold.
  bool IsOurs(c10::StorageImpl& storage) const;

  const std::string name_;
  TorchStreamedDevice& memory_;
  c10::StorageImpl* const key_;
  // Keeps the address from being given to another storage.
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const size_t size_bytes_;
  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
  std::shared_ptr<Life>* cold_ = nullptr;      // the null DataPtr's context
  std::atomic<void*> address_;                 // null: away
  c10::intrusive_ptr<c10::StorageImpl> kept_;  // until Settle
};

}  // namespace terrace
