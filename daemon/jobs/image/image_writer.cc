#include "daemon/jobs/image/image_writer.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "daemon/wire/envelope.h"
#include "runtime/messages/request_id.h"
#include "runtime/tensor/tensor_life.h"

namespace terrace {
namespace {

absl::Status Wrong(const char* what, uint32_t index) {
  return absl::DataLossError(
      absl::StrCat("a job's image: ", what, " at its entry ", index));
}

TensorEntryState StateOf(const Tensor& tensor) {
  TensorEntryState state{};
  state.generation = tensor.generation();
  state.is_lost = tensor.loss().ok() ? 0 : 1;
  state.below_number = kNoTier.number;
  const Copy* const below = tensor.resting();
  if (below != nullptr) {
    state.below_kind = static_cast<int32_t>(below->place.tier().kind);
    state.below_number = below->place.tier().number;
    state.below_offset = below->place.extent().offset;
    state.below_bytes = below->place.extent().size_bytes;
    state.below_generation = below->generation;
  }
  const Copy* const memory = tensor.at(kDramTier);
  if (memory != nullptr && memory->delivered()) {
    state.memory_offset = memory->place.extent().offset;
    state.memory_bytes = memory->place.extent().size_bytes;
    state.memory_generation = memory->generation;
  }
  return state;
}

// The name's parts, of which each is in an entry of its own. Nullopt: there
// are more than a name can have, or what is no such part.
std::optional<std::string> NameOf(const ImageFile& file,
                                  const TensorEntry& tensor) {
  if (tensor.name_bytes > kMostMessageBytes) return std::nullopt;
  std::string name(tensor.name.data(),
                   std::min<size_t>(tensor.name_bytes, tensor.name.size()));
  uint32_t more = tensor.more;
  while (more != kNoEntry && name.size() < tensor.name_bytes) {
    if (more >= kImageEntries) return std::nullopt;
    const ImageEntry& entry = file.entry(more);
    if (entry.kind != EntryKind::kName) return std::nullopt;
    const size_t left = tensor.name_bytes - name.size();
    name.append(entry.name.name.data(), std::min(left, entry.name.name.size()));
    more = entry.name.more;
  }
  const bool is_whole = name.size() == tensor.name_bytes && more == kNoEntry;
  if (!is_whole || name.empty()) return std::nullopt;
  return name;
}

std::optional<TensorImage> TensorOf(const ImageFile& file,
                                    const ImageEntry& entry) {
  const TensorEntry& tensor = entry.tensor;
  std::optional<std::string> name = NameOf(file, tensor);
  if (!name.has_value() || entry.state > 1) return std::nullopt;
  const TensorEntryState& state = tensor.states[entry.state];
  TensorImage image;
  image.id = {tensor.id};
  image.spec = {.name = *std::move(name),
                .size_bytes = tensor.size_bytes,
                .global_offset = tensor.global_offset,
                .step_number = tensor.step_number};
  image.generation = state.generation;
  image.is_lost = state.is_lost != 0;
  if (state.below_number >= 0) {
    image.below = {
        {static_cast<TierKind>(state.below_kind), state.below_number},
        {state.below_offset, state.below_bytes},
        state.below_generation};
  }
  if (state.memory_bytes > 0) {
    image.memory = {kDramTier,
                    {state.memory_offset, state.memory_bytes},
                    state.memory_generation};
  }
  return image;
}

}  // namespace

absl::StatusOr<RuntimeImage> ReadImage(const ImageFile& file) {
  const ImageHeader& header = file.header();
  RuntimeImage image;
  image.next_tensor = header.next.tensor;
  image.next_queue = header.next.queue;
  image.next_token = header.next.token;
  const uint32_t count = header.entries;
  for (uint32_t i = 0; i < count; ++i) {
    const ImageEntry& entry = file.entry(i);
    switch (entry.kind.load()) {
      case EntryKind::kFree:
      case EntryKind::kName:
        break;
      case EntryKind::kTensor: {
        std::optional<TensorImage> tensor = TensorOf(file, entry);
        if (!tensor.has_value()) return Wrong("no whole tensor", i);
        image.tensors.push_back(*std::move(tensor));
        break;
      }
      case EntryKind::kPin: {
        const PinEntry& pin = entry.pin;
        image.pins.push_back({.token = pin.token,
                              .tensor = {pin.tensor},
                              .queue = pin.queue,
                              .access = static_cast<Access>(pin.access)});
        break;
      }
      case EntryKind::kQueue: {
        const QueueEntry& queue = entry.queue;
        image.queues.push_back(
            {.id = queue.id,
             .window = {queue.window_offset, queue.window_size},
             .slots = static_cast<int>(queue.slots),
             .window_bytes = queue.window_bytes});
        break;
      }
      case EntryKind::kLent: {
        const Extent range{entry.lent.offset, entry.lent.size_bytes};
        const bool is_range = range.offset >= 0 && range.size_bytes > 0 &&
                              range.offset <= header.used_bytes &&
                              range.size_bytes <= header.used_bytes;
        if (!is_range) return Wrong("no range", i);
        image.lent.push_back(range);
        break;
      }
      default:
        return Wrong("a kind that is none", i);
    }
  }
  return image;
}

ImageWriter::ImageWriter(ImageFile& file) : file_(file) {
  absl::flat_hash_set<uint32_t> names;
  const uint32_t count = file_.header().entries;
  for (uint32_t i = 0; i < count; ++i) {
    const ImageEntry& entry = file_.entry(i);
    const EntryKind kind = entry.kind;
    if (kind == EntryKind::kTensor) {
      tensors_[static_cast<uint64_t>(entry.tensor.id)] = i;
      for (uint32_t more = entry.tensor.more;
           more < kImageEntries && names.insert(more).second;) {
        more = file_.entry(more).name.more;
      }
    } else if (kind == EntryKind::kPin) {
      pins_[entry.pin.token] = i;
    } else if (kind == EntryKind::kQueue) {
      queues_[static_cast<uint64_t>(entry.queue.id)] = i;
    } else if (kind == EntryKind::kLent) {
      lent_[static_cast<uint64_t>(entry.lent.offset)] = i;
    }
  }
  // A part of a name that is no tensor's was never one's, or is not any more.
  for (uint32_t i = 0; i < count; ++i) {
    const EntryKind kind = file_.entry(i).kind;
    const bool is_free = kind == EntryKind::kFree ||
                         (kind == EntryKind::kName && !names.contains(i));
    if (is_free) Free(i);
  }
}

uint32_t ImageWriter::Take() {
  if (!free_.empty()) {
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  ImageHeader& header = file_.header();
  const uint32_t index = header.entries;
  if (index == kImageEntries) {
    header.is_incomplete = 1;
    return kNoEntry;
  }
  header.entries = index + 1;
  return index;
}

void ImageWriter::Free(uint32_t index) {
  file_.entry(index).kind = EntryKind::kFree;
  free_.push_back(index);
}

void ImageWriter::FreeName(uint32_t more) {
  while (more != kNoEntry) {
    const uint32_t next = file_.entry(more).name.more;
    Free(more);
    more = next;
  }
}

// The last part first, so that each is whole before another names it.
uint32_t ImageWriter::PutName(absl::string_view rest) {
  uint32_t more = kNoEntry;
  while (!rest.empty()) {
    const uint32_t index = Take();
    if (index == kNoEntry) return more;
    const size_t bytes = 1 + (rest.size() - 1) % NameEntry::kNameBytes;
    const absl::string_view last = rest.substr(rest.size() - bytes);
    rest.remove_suffix(bytes);
    ImageEntry& entry = file_.entry(index);
    entry.name.more = more;
    std::copy(last.begin(), last.end(), entry.name.name.begin());
    entry.kind = EntryKind::kName;
    more = index;
  }
  return more;
}

void ImageWriter::OnTensor(const Tensor& tensor) {
  ImageHeader& header = file_.header();
  const int64_t id = tensor.id.value;
  header.next.tensor = std::max(header.next.tensor.load(), id + 1);
  // One that was restored stands there.
  if (tensors_.contains(static_cast<uint64_t>(id))) return OnChanged(tensor);
  const absl::string_view name = tensor.spec.name;
  const absl::string_view first = name.substr(0, TensorEntry::kNameBytes);
  const uint32_t more = PutName(name.substr(first.size()));
  const uint32_t index = Take();
  if (index == kNoEntry) return FreeName(more);
  ImageEntry& entry = file_.entry(index);
  TensorEntry& of = entry.tensor;
  of.id = id;
  of.size_bytes = tensor.spec.size_bytes;
  of.global_offset = tensor.spec.global_offset;
  of.step_number = tensor.spec.step_number;
  of.name_bytes = static_cast<uint32_t>(name.size());
  of.more = more;
  std::copy(first.begin(), first.end(), of.name.begin());
  of.states[0] = StateOf(tensor);
  entry.state = 0;
  entry.kind = EntryKind::kTensor;
  tensors_[static_cast<uint64_t>(id)] = index;
}

void ImageWriter::OnChanged(const Tensor& tensor) {
  const auto found = tensors_.find(static_cast<uint64_t>(tensor.id.value));
  if (found == tensors_.end()) return;
  ImageEntry& entry = file_.entry(found->second);
  const uint32_t other = 1 - entry.state;
  entry.tensor.states[other] = StateOf(tensor);
  entry.state = other;
}

void ImageWriter::End(Places& places, uint64_t key) {
  const auto found = places.find(key);
  if (found == places.end()) return;
  const uint32_t index = found->second;
  places.erase(found);
  const bool is_tensor = &places == &tensors_;
  const uint32_t more = is_tensor ? file_.entry(index).tensor.more : kNoEntry;
  Free(index);
  FreeName(more);
}

void ImageWriter::OnTensorEnd(TensorId id) {
  End(tensors_, static_cast<uint64_t>(id.value));
}

void ImageWriter::OnQueue(const QueueImage& queue) {
  ImageHeader& header = file_.header();
  header.next.queue = std::max(header.next.queue.load(), queue.id + 1);
  if (queues_.contains(static_cast<uint64_t>(queue.id))) return;
  const uint32_t index = Take();
  if (index == kNoEntry) return;
  ImageEntry& entry = file_.entry(index);
  entry.queue = {queue.id, queue.window.offset, queue.window.size_bytes,
                 queue.slots, queue.window_bytes};
  entry.kind = EntryKind::kQueue;
  queues_[static_cast<uint64_t>(queue.id)] = index;
}

void ImageWriter::OnQueueEnd(int64_t id) {
  End(queues_, static_cast<uint64_t>(id));
}

void ImageWriter::OnPin(const PinImage& pin) {
  constexpr uint64_t kCount = (uint64_t{1} << kTokenBits) - 1;
  ImageHeader& header = file_.header();
  header.next.token =
      std::max(header.next.token.load(), (pin.token & kCount) + 1);
  const uint32_t index = Take();
  if (index == kNoEntry) return;
  ImageEntry& entry = file_.entry(index);
  entry.pin = {pin.token, pin.tensor.value, pin.queue,
               static_cast<int64_t>(pin.access)};
  entry.kind = EntryKind::kPin;
  pins_[pin.token] = index;
}

void ImageWriter::OnPinEnd(uint64_t token) { End(pins_, token); }

void ImageWriter::OnLent(const Extent& range) {
  const uint32_t index = Take();
  if (index == kNoEntry) return;
  ImageEntry& entry = file_.entry(index);
  entry.lent = {range.offset, range.size_bytes};
  entry.kind = EntryKind::kLent;
  lent_[static_cast<uint64_t>(range.offset)] = index;
}

void ImageWriter::OnReturned(const Extent& range) {
  End(lent_, static_cast<uint64_t>(range.offset));
}

void ImageWriter::KeepOnly(const RuntimeImage& image) {
  absl::flat_hash_set<uint64_t> tensors;
  absl::flat_hash_set<uint64_t> pins;
  absl::flat_hash_set<uint64_t> queues;
  for (const TensorImage& each : image.tensors) {
    tensors.insert(static_cast<uint64_t>(each.id.value));
  }
  for (const PinImage& each : image.pins) pins.insert(each.token);
  for (const QueueImage& each : image.queues) {
    queues.insert(static_cast<uint64_t>(each.id));
  }
  const auto keep = [this](Places& places,
                           const absl::flat_hash_set<uint64_t>& kept) {
    std::vector<uint64_t> gone;
    for (const auto& [key, index] : places) {
      if (!kept.contains(key)) gone.push_back(key);
    }
    for (const uint64_t each : gone) End(places, each);
  };
  keep(pins_, pins);
  keep(tensors_, tensors);
  keep(queues_, queues);
}

}  // namespace terrace
