#include "optimizer/step/staging.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// A multiple of `unit`.
int64_t Padded(int64_t bytes, int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Arrays in a slot begin where any dtype may. More would make the slot of a
// full chunk of fp32 parameters larger than the chunk: for each 8 bytes of
// moments it holds 8 of parameter and gradient.
int64_t ArrayBytes(int64_t count, DType dtype) {
  return Padded(count * DTypeBytes(dtype), DTypeBytes(DType::kFloat32));
}

bool IsStaged(const ParameterData& data) {
  return data.device != nullptr && data.gradient != nullptr;
}

}  // namespace

absl::StatusOr<StagingSlot::DeviceStream*> StagingSlot::StreamOf(
    Device& device) {
  for (DeviceStream& each : streams_) {
    if (each.device == &device) return &each;
  }
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Device::Stream> stream,
                           device.MakeStream());
  streams_.push_back({&device, std::move(stream)});
  return &streams_.back();
}

absl::Status StagingSlot::CopyToHost(Device& device, void* target,
                                     const void* source, int64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(DeviceStream* const to, StreamOf(device));
  staging_.from_devices_.fetch_add(bytes, std::memory_order_relaxed);
  TERRACE_RETURN_IF_ERROR(to->stream->CopyToHost(target, source, bytes));
  ++to->under_way;
  return absl::OkStatus();
}

absl::Status StagingSlot::CopyToDevice(Device& device, void* target,
                                       const void* source, int64_t bytes) {
  TERRACE_ASSIGN_OR_RETURN(DeviceStream* const to, StreamOf(device));
  staging_.to_devices_.fetch_add(bytes, std::memory_order_relaxed);
  TERRACE_RETURN_IF_ERROR(to->stream->CopyToDevice(target, source, bytes));
  ++to->under_way;
  return absl::OkStatus();
}

std::optional<absl::Status> StagingSlot::Poll() {
  bool under_way = false;
  for (DeviceStream& each : streams_) {
    if (each.under_way == 0) continue;
    ended_.clear();
    each.stream->Poll(&ended_);
    each.under_way -= static_cast<int64_t>(ended_.size());
    TERRACE_CHECK(each.under_way >= 0);
    for (const absl::Status& status : ended_) first_.Update(status);
    under_way |= each.under_way > 0;
  }
  if (under_way) return std::nullopt;
  return std::exchange(first_, absl::OkStatus());
}

void StagingSlot::Wait() {
  for (DeviceStream& each : streams_) {
    if (std::exchange(each.under_way, 0) > 0) each.stream->Wait().IgnoreError();
  }
  first_ = absl::OkStatus();
}

int64_t Staging::BytesFor(absl::Span<const ParameterSpec> parameters,
                          int64_t chunk_payload_bytes) {
  int64_t slot_bytes = 0;
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    int64_t elements = 0;
    int64_t segments = 0;
    for (const ParameterSpec& each : parameters) {
      if (each.dtype != dtype || !each.on_device) continue;
      elements += each.count;
      ++segments;
    }
    if (elements == 0) continue;
    const int64_t full =
        chunk_payload_bytes / (dtype == DType::kFloat32 ? 8 : 12);
    // Each segment's parameter and gradient are padded, but for fp32.
    const int64_t padding = dtype == DType::kFloat32 ? 0 : 4 * segments;
    slot_bytes = std::max({slot_bytes, kLeastSlotBytes,
                           2 * DTypeBytes(dtype) * std::min(full, elements) +
                               std::min(padding, 4 * full)});
  }
  return kSlots * Padded(slot_bytes, 64);
}

Staging::~Staging() {
  MutexLock lock(mutex_);
  TERRACE_CHECK(free_.size() == slots_.size());
}

absl::Status Staging::Prepare(Device& device, int64_t slot_bytes) {
  if (slot_bytes <= slot_bytes_) return absl::OkStatus();
  MutexLock lock(mutex_);
  TERRACE_CHECK(free_.size() == slots_.size());
  free_.clear();
  slots_.clear();
  memory_.reset();
  slot_bytes_ = 0;
  const int64_t padded = Padded(slot_bytes, 64);
  TERRACE_ASSIGN_OR_RETURN(memory_, device.AllocatePinned(kSlots * padded));
  slot_bytes_ = padded;
  for (int i = 0; i < kSlots; ++i) {
    slots_.push_back(
        std::make_unique<StagingSlot>(*this, memory_.get() + i * padded));
    free_.push_back(slots_.back().get());
  }
  return absl::OkStatus();
}

StagingSlot& Staging::Take() {
  MutexLock lock(mutex_);
  TERRACE_CHECK(!free_.empty());
  StagingSlot& slot = *free_.back();
  free_.pop_back();
  return slot;
}

void Staging::Return(StagingSlot& slot) {
  MutexLock lock(mutex_);
  free_.push_back(&slot);
}

int64_t StagedChunk::Bytes(const Chunk& chunk,
                           absl::Span<const ParameterData> parameters) {
  int64_t bytes = 0;
  for (const Segment& segment : chunk.segments) {
    const ParameterData& data =
        parameters[static_cast<size_t>(segment.parameter)];
    if (!IsStaged(data)) continue;
    bytes += ArrayBytes(segment.count, chunk.dtype) +
             ArrayBytes(segment.count, data.gradient_dtype);
  }
  return bytes;
}

StagedChunk::StagedChunk(Staging& staging, const Chunk& chunk,
                         absl::Span<const ParameterData> parameters)
    : staging_(staging),
      chunk_(chunk),
      parameters_(parameters),
      bytes_(Bytes(chunk, parameters)),
      slot_(&staging.Take()),
      segments_(chunk.segments.size()) {}

absl::StatusOr<std::unique_ptr<StagedChunk>> StagedChunk::Fetch(
    Staging& staging, const Chunk& chunk,
    absl::Span<const ParameterData> parameters) {
  if (Bytes(chunk, parameters) == 0) return nullptr;
  auto staged = std::make_unique<StagedChunk>(staging, chunk, parameters);
  TERRACE_RETURN_IF_ERROR(staged->BeginFetch());
  return staged;
}

// A slot must not be free while something is on its way into it.
StagedChunk::~StagedChunk() {
  if (slot_ == nullptr) return;
  slot_->Wait();
  staging_.Return(*slot_);
}

absl::Status StagedChunk::BeginFetch() {
  std::byte* next = slot_->bytes();
  for (size_t i = 0; i < chunk_.segments.size(); ++i) {
    const Segment& segment = chunk_.segments[i];
    const ParameterData& data =
        parameters_[static_cast<size_t>(segment.parameter)];
    if (!IsStaged(data)) continue;
    ParameterData& here = segments_[i];
    here = {.gradient_dtype = data.gradient_dtype, .device = data.device};
    const int64_t width = DTypeBytes(chunk_.dtype);
    here.parameter = next;
    next += ArrayBytes(segment.count, chunk_.dtype);
    TERRACE_RETURN_IF_ERROR(
        slot_->CopyToHost(*data.device, here.parameter,
                          static_cast<const std::byte*>(data.parameter) +
                              segment.parameter_offset * width,
                          segment.count * width));
    const int64_t gradient_width = DTypeBytes(data.gradient_dtype);
    TERRACE_RETURN_IF_ERROR(
        slot_->CopyToHost(*data.device, next,
                          static_cast<const std::byte*>(data.gradient) +
                              segment.parameter_offset * gradient_width,
                          segment.count * gradient_width));
    here.gradient = next;
    next += ArrayBytes(segment.count, data.gradient_dtype);
  }
  return absl::OkStatus();
}

std::optional<absl::Status> StagedChunk::Arrived() { return slot_->Poll(); }

void StagedChunk::BeginReturn() {
  for (size_t i = 0; i < segments_.size() && return_begun_.ok(); ++i) {
    if (segments_[i].device == nullptr) continue;
    const Segment& segment = chunk_.segments[i];
    const ParameterData& data =
        parameters_[static_cast<size_t>(segment.parameter)];
    const int64_t width = DTypeBytes(chunk_.dtype);
    return_begun_ =
        slot_->CopyToDevice(*data.device,
                            static_cast<std::byte*>(data.parameter) +
                                segment.parameter_offset * width,
                            segments_[i].parameter, segment.count * width);
  }
}

std::optional<absl::Status> StagedChunk::Returned() {
  std::optional<absl::Status> returned = slot_->Poll();
  if (returned.has_value() && !return_begun_.ok()) return return_begun_;
  return returned;
}

bool StagedChunk::Keep() {
  for (const ParameterData& here : segments_) {
    if (here.device != nullptr && !here.device->Health().ok()) return false;
  }
  kept_.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes_)]);
  if (kept_ == nullptr) return false;
  Move(slot_->bytes(), kept_.get());
  staging_.Return(*std::exchange(slot_, nullptr));
  return true;
}

void StagedChunk::ReturnAgain(absl::Span<const ParameterData> parameters) {
  parameters_ = parameters;
  slot_ = &staging_.Take();
  Move(kept_.get(), slot_->bytes());
  kept_.reset();
  return_begun_ = absl::OkStatus();
  BeginReturn();
}

void StagedChunk::Move(const std::byte* from, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(bytes_));
  for (ParameterData& here : segments_) {
    if (here.device == nullptr) continue;
    here.parameter =
        to + (static_cast<const std::byte*>(here.parameter) - from);
    here.gradient = to + (static_cast<const std::byte*>(here.gradient) - from);
  }
}

}  // namespace terrace
