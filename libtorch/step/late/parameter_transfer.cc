#include "libtorch/step/late/parameter_transfer.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"
#include "libtorch/hook/held_bytes.h"

namespace terrace {
namespace {

// Small parameters of one owner travel together, up to this size.
constexpr int64_t kPackBytes = 1 << 20;
// What an owner says of a pack: a text of why it is not updated, or nothing.
constexpr int64_t kSaidBytes = 1024;
// Parameters of a pack begin at multiples of this.
constexpr int64_t kAlignment = 16;

int64_t Aligned(size_t bytes) {
  return (static_cast<int64_t>(bytes) + kAlignment - 1) / kAlignment *
         kAlignment;
}

at::Tensor Bytes(int64_t size) {
  return at::zeros({size}, at::TensorOptions(at::kByte).device(c10::kCPU));
}

at::Tensor Part(const at::Tensor& bytes, int64_t offset,
                const at::Tensor& like) {
  return at::from_blob(bytes.data_ptr<uint8_t>() + offset, like.sizes(),
                       at::TensorOptions(like.scalar_type()));
}

// Returns the first characters of a text in UTF-8 that have at most so many
// bytes.
absl::string_view Cut(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (text[most] & 0xC0) == 0x80) --most;
  return text.substr(0, most);
}

}  // namespace

std::vector<ParameterPack> PacksOf(
    absl::Span<const ExchangedParameter> parameters) {
  std::vector<ParameterPack> packs;
  std::vector<size_t> last;  // of each owner, its pack's index and one
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ExchangedParameter& parameter = parameters[i];
    const size_t bytes = parameter.tensor.nbytes();
    if (bytes == 0) continue;
    const auto owner = static_cast<size_t>(parameter.owner);
    if (last.size() <= owner) last.resize(owner + 1);
    if (last[owner] == 0 ||
        packs[last[owner] - 1].bytes + Aligned(bytes) > kPackBytes) {
      packs.push_back({.owner = parameter.owner});
      last[owner] = packs.size();
    }
    ParameterPack& pack = packs[last[owner] - 1];
    pack.bytes += Aligned(bytes);
    pack.parameters.push_back(static_cast<int>(i));
  }
  for (ParameterPack& pack : packs) {
    if (pack.parameters.size() > 1) continue;
    pack.bytes = static_cast<int64_t>(
        parameters[static_cast<size_t>(pack.parameters[0])].tensor.nbytes());
  }
  return packs;
}

// A parameter's elements where they lie, as a tensor of its own: a message on
// the parameter's storage does not concern it.
struct ParameterTransfer::Elements {
  HeldBytes held;
  at::Tensor tensor;

  static absl::StatusOr<Elements> Of(const at::Tensor& parameter,
                                     bool is_written) {
    auto held = HeldBytes::Hold(*parameter.storage().unsafeGetStorageImpl(),
                                {.is_written = is_written, .is_beside = true});
    TERRACE_RETURN_IF_ERROR(held.status());
    void* const first =
        held->data() + parameter.storage_offset() * parameter.element_size();
    at::Tensor tensor =
        at::from_blob(first, parameter.sizes(), parameter.strides(),
                      at::TensorOptions(parameter.scalar_type()));
    return Elements{*std::move(held), std::move(tensor)};
  }
};

struct ParameterTransfer::Buffers {
  std::optional<Elements> elements;  // whose memory `bytes` are, where set
  at::Tensor bytes;
  at::Tensor said;
  c10::intrusive_ptr<c10d::Work> values;
  c10::intrusive_ptr<c10d::Work> told;
};

ParameterTransfer::ParameterTransfer(
    c10d::ProcessGroup& group, int rank,
    absl::Span<const ExchangedParameter> parameters, ParameterPack& pack)
    : group_(group),
      rank_(rank),
      parameters_(parameters),
      pack_(pack),
      buffers_(std::make_unique<Buffers>()) {}

ParameterTransfer::ParameterTransfer(ParameterTransfer&&) noexcept = default;

ParameterTransfer::~ParameterTransfer() = default;

void ParameterTransfer::Begin(const absl::Status& updated) {
  pack_.failure.clear();
  pack_.failed_rank = -1;
  // An owner sends what it has, where its update failed: what other ranks
  // receive in place is then what they had.
  absl::Status status = IsSent() ? Fill() : Hold();
  if (!updated.ok()) status = updated;
  if (!buffers_->bytes.defined()) buffers_->bytes = Bytes(pack_.bytes);
  buffers_->said = Bytes(kSaidBytes);
  if (!status.ok()) {
    Fail(status);
    const absl::string_view text = Cut(pack_.failure, kSaidBytes - 1);
    std::memcpy(buffers_->said.data_ptr<uint8_t>(), text.data(), text.size());
  }
  buffers_->values = Broadcast(buffers_->bytes);
  buffers_->told = Broadcast(buffers_->said);
}

bool ParameterTransfer::HasEnded() {
  return buffers_->values->isCompleted() && buffers_->told->isCompleted();
}

void ParameterTransfer::End() {
  buffers_->values->wait();
  buffers_->told->wait();
  if (IsSent()) return;
  const auto* const said =
      reinterpret_cast<const char*>(buffers_->said.data_ptr<uint8_t>());
  if (*said != 0) {
    pack_.failure = said;
    pack_.failed_rank = pack_.owner;
  }
  if (!pack_.failure.empty() || buffers_->elements.has_value()) return;
  if (const absl::Status status = Spread(); !status.ok()) Fail(status);
}

void ParameterTransfer::Abandon() {
  for (const auto& work : {buffers_->values, buffers_->told}) {
    if (work == nullptr) continue;
    Guarded(c10::kCPU, [&] { work->wait(); }).IgnoreError();
  }
}

void ParameterTransfer::Fail(const absl::Status& why) {
  const absl::string_view text = why.message();
  pack_.failure = text.empty() ? "it did not say why" : std::string(text);
  pack_.failed_rank = rank_;
}

c10::intrusive_ptr<c10d::Work> ParameterTransfer::Broadcast(
    const at::Tensor& bytes) {
  std::vector<at::Tensor> tensors = {bytes};
  c10d::BroadcastOptions options;
  options.rootRank = pack_.owner;
  return group_.broadcast(tensors, options);
}

absl::Status ParameterTransfer::Hold() {
  const at::Tensor& first = TensorOf(pack_.parameters[0]);
  if (pack_.parameters.size() > 1 || !first.is_contiguous()) {
    return absl::OkStatus();
  }
  TERRACE_ASSIGN_OR_RETURN(Elements elements, Elements::Of(first, !IsSent()));
  buffers_->bytes = at::from_blob(elements.tensor.data_ptr(), {pack_.bytes},
                                  at::TensorOptions(at::kByte));
  buffers_->elements.emplace(std::move(elements));
  return absl::OkStatus();
}

absl::Status ParameterTransfer::Fill() {
  TERRACE_RETURN_IF_ERROR(Hold());
  if (buffers_->elements.has_value()) return absl::OkStatus();
  buffers_->bytes = Bytes(pack_.bytes);
  int64_t offset = 0;
  for (const int index : pack_.parameters) {
    const at::Tensor& parameter = TensorOf(index);
    TERRACE_ASSIGN_OR_RETURN(const Elements elements,
                             Elements::Of(parameter, /*is_written=*/false));
    Part(buffers_->bytes, offset, parameter).copy_(elements.tensor);
    offset += Aligned(parameter.nbytes());
  }
  return absl::OkStatus();
}

absl::Status ParameterTransfer::Spread() {
  int64_t offset = 0;
  for (const int index : pack_.parameters) {
    const at::Tensor& parameter = TensorOf(index);
    TERRACE_ASSIGN_OR_RETURN(Elements elements,
                             Elements::Of(parameter, /*is_written=*/true));
    elements.tensor.copy_(Part(buffers_->bytes, offset, parameter));
    offset += Aligned(parameter.nbytes());
  }
  return absl::OkStatus();
}

}  // namespace terrace
