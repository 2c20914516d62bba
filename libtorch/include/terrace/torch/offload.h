// A model of LibTorch whose parameters, or activations, live below: each is in
// memory while an operation uses it, and otherwise where there is room. The
// same as Python's terrace.offload, in the same words; over a Runtime and a
// Hook of its own.
//
//   auto offload = terrace::Offload::Create(
//       *model, {.memory_budget_share = 0.1, .nvme_paths = {"/mnt/nvme0"}});
//   auto optimizer = terrace::OffloadedAdamW::Create(
//       **offload, model->parameters(), {});  // joins
//   for (...) {
//     (*offload)->BeginStep();
//     (*optimizer)->zero_grad();
//     loss(model).backward();
//     (*optimizer)->step();
//   }
//   (*offload)->Close(terrace::Offload::AtClose::kRestore);
//
// The model, its losses and its gradients stay as they are, bit for bit, and so
// does torch::optim's work on the parameters. What shares memory goes on
// sharing it; frozen parameters are never written back. Parameters that are
// made or replaced later, as by to() or torch::load(), are ordinary ones.
//
// An OffloadedAdamW or OffloadedAdam that is made with the Offload joins it:
// its state, and the gradients of its parameters, have the same memory and
// paths; see terrace/torch/optimizer.h. Beside other optimizers gradients and
// state stay in memory, and so do buffers always.
//
// With `activations` what autograd saves in the model's forward lives below
// too, until backward needs it: forward runs in a scope of SaveActivations().
//
// What reads or writes bytes without an operation holds a Lease meanwhile; what
// a fetch cannot bring makes the operation throw: both as terrace/torch/hook.h
// has it.
//
// Thread-safe; operations on the parameters as in hook.h. A forked child has
// none of its parent's: there each use throws, each call that can fail is
// Cancelled, and the object is destroyed without an effect.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "terrace/options.h"
#include "terrace/runtime.h"
#include "terrace/stats.h"
#include "terrace/tier.h"
#include "terrace/torch/activation_scope.h"
#include "terrace/torch/hook.h"

namespace torch::nn {
class Module;
}

namespace terrace {

class OffloadPlace;

struct OffloadOptions {
  // Of memory for the parameters and for what is on its way: bytes, or a share
  // of the parameters' bytes (0.1 is a tenth). At least, and a share is raised
  // to that: what the operations of the largest module take, twice; with
  // activations no less than that once and five tensors of
  // activations_above_bytes. An optimizer that joins has its part of bytes; a
  // share grows, by that share of gradients and state. Neither: all of them, or
  // a tenth with a path below.
  int64_t memory_budget_bytes = 0;
  double memory_budget_share = 0;
  // For the rest: directories, empty files or block devices, as Options::paths.
  std::vector<std::string> nvme_paths;
  // Instead of all of the above: memory, as "dram=8GiB" (unnamed: a tenth), and
  // what is below it; see ParseTier.
  std::vector<TierSpec> tiers;

  bool parameters = true;  // false: they stay in memory, with activations
  // What autograd saves in a scope of SaveActivations() goes below, from so
  // many bytes on; needs a path or tier below. A budget in bytes holds it too;
  // to a share it adds 256 MiB.
  bool activations = false;
  int64_t activations_above_bytes = 1 << 20;

  // How long a fetch may take, room for it included.
  absl::Duration patience = absl::Minutes(5);
  // As in terrace/options.h.
  EngineKind engine = EngineKind::kAuto;
  int threads = 0;
  std::string machine_profile;
  bool unsafe_media = false;

  // Of a model whose parameters are on the meta device (terrace/torch/meta.h):
  // a safetensors file, or a folder with an index of several or with
  // model.safetensors. The values go from there straight below, one by one, by
  // reads and not by a mapping. Beside the budget there are never more in
  // memory than 4 MiB that are converted at a time, the files' headers, and the
  // model's buffers, until the end once more where the files have them; the
  // parameters stay the tensors that they are. A file of torch::save is for
  // torch::load() into a model in memory.
  std::string checkpoint;
  // Told after each tensor, on Create's thread, of the bytes so far and of all.
  std::function<void(int64_t done, int64_t total)> checkpoint_progress;
};

struct OffloadStats {
  int64_t parameter_bytes = 0;  // of all parameters, shared ones once
  int64_t minimum_bytes = 0;    // of a budget with a tier below
  int64_t budget_bytes = 0;
  int64_t joined_bytes = 0;  // of it, that optimizers which joined added
  int64_t window_bytes = 0;  // of it, that operations may have at a time
  int64_t activation_budget_bytes = 0;  // of it, beside a share
  int64_t activation_limit_bytes = 0;   // of the largest that goes below
  int64_t steps = 0;                    // begun
  HookStats hook;                       // what was moved for operations
  std::vector<BlockedOn> blocked;       // by parameter, the longest first
  Stats runtime;                        // memory, tiers and paths
};

class Offload {
 public:
  using Access = Hook::Access;
  using AtClose = Hook::AtClose;

  // Takes all parameters over: they are copied once, and their old memory is
  // given back, whatever made it. No operation may use them meanwhile. From the
  // first model on that has a tier below, malloc returns each freed block of
  // 1 MiB and more to the system.
  // InvalidArgument: an option; a budget that cannot hold all, with nothing
  // below for the rest; a parameter that cannot be taken over, which is named.
  // Unimplemented: a tier that parameters cannot have; activations of a model
  // on a device, or where Python has loaded LibTorch: its engine asks hooks of
  // Python alone what autograd saves. ResourceExhausted: bytes
  // below the minimum, which is named with what needs it; no such
  // memory. FailedPrecondition: a parameter is offloaded already. Else what
  // Runtime::Create says. After an error the model is as it was, but for what
  // Hook::Manage names as lost.
  //
  // With a checkpoint it needs the names of named_parameters() and
  // named_buffers(); of names for one tensor some may lack. Values are
  // converted to the model's dtypes. Buffers that the files have come from
  // there and stay in memory; others keep the values that they have.
  // InvalidArgument, with all names, before anything is made: parameters that
  // have values already; those, and buffers on the meta device, that no file
  // has; tensors that the model has not; other shapes; dtypes that are not to
  // be converted (float to integer, say); what is no safetensors file or index.
  // NotFound, DataLoss: a file that is not there, or was cut. Others that tell
  // of files name path, offset and errno. What checkpoint_progress throws
  // passes through; the model is as it was then, too.
  static absl::StatusOr<std::unique_ptr<Offload>> Create(
      ::torch::nn::Module& model, const OffloadOptions& options);

  // Closes with kRestore if Close did not, with a warning of LibTorch's of what
  // that says. What is leased then stays usable, and so do optimizers that
  // joined: memory and files are leaked for it.
  virtual ~Offload() = default;

  // Of a parameter, of a gradient that is below, or of a view of one.
  // InvalidArgument: of none of these. FailedPrecondition: it is closed, or a
  // parameter's update failed. Else what the fetch says.
  virtual absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor,
                                          Access access) = 0;

  // A hint: begins to fetch those that are away, as far as there is room, and
  // waits for none.
  virtual void Prefetch(absl::Span<const at::Tensor> tensors) = 0;

  // Around the model's forward, on the thread that runs it. Of what autograd
  // saves meanwhile the model's parameters and buffers of Create's time stay in
  // memory, memory that LibTorch did not make, what is larger than
  // stats().activation_limit_bytes, and the storages of `arguments`: those of
  // the model, as whoever made them may have their addresses or write to them.
  // A tensor that cannot go below makes the operation that saves it throw
  // c10::Error, as a fetch does. Without `activations`, after Close, and in a
  // forked child: a scope of nothing.
  virtual ActivationScope SaveActivations(
      absl::Span<const at::Tensor> arguments) = 0;
  ActivationScope SaveActivations() { return SaveActivations({}); }

  // A training step begins, or whatever repeats: all passes whose gradients are
  // summed and the optimizer's step, or one pass where nothing is trained. From
  // the second on what is used next is fetched ahead, and what is used last
  // leaves first. Without steps the one used longest ago leaves first.
  virtual void BeginStep() = 0;

  // Fetches that failed may be tried again, as after a path was repaired.
  // Before LibTorch 2.12 they are, and the first error is returned; views that
  // were made before go on throwing. FailedPrecondition: it is closed; or a
  // parameter that has failed is leased or in use.
  virtual absl::Status Retry() = 0;

  // Blocks until no updates of optimizers that joined go on, each as its Flush
  // does; no other thread may use these meanwhile. The first error, which tells
  // of the others. DeadlineExceeded: the deadline came first; nothing is lost,
  // and the updates go on. After Close: nothing.
  virtual absl::Status Flush(absl::Time deadline) = 0;

  // Ends it: finishes the updates of optimizers that joined, brings parameters
  // and gradients into ordinary memory or leaves them away, closes these
  // optimizers, gives the memory back and removes the files. No operation may
  // use the parameters meanwhile, and no other thread such an optimizer. Saved
  // activations go where the parameters do. Again: nothing.
  // FailedPrecondition, and nothing changes: a parameter is leased or in use
  // (named); or a queue or pin of the Runtime is held: then the parameters are
  // what they are to be, and the rest is for the next Close. Other errors: it
  // is closed all the same; a parameter that could not be brought is refused,
  // and the first one is told; updates that failed leave their parameters as
  // they were before the step. Those that were told before are tried once more;
  // a step without overlap that is incomplete is told.
  virtual absl::Status Close(AtClose what) = 0;

  // As Hook::error, and after Close as well.
  virtual absl::Status error() const = 0;
  // After Close what was true then. Empty in a forked child.
  virtual OffloadStats stats() const = 0;

  // What the parameters live in, for others that are to share its memory and
  // paths beside the window. Not after Close, and not in a forked child.
  virtual Runtime& runtime() = 0;

 private:
  friend class OffloadedAdamBase;
  // For an optimizer that joins. FailedPrecondition: it is closed. Cancelled:
  // in a forked child.
  virtual absl::StatusOr<std::shared_ptr<OffloadPlace>> Place() = 0;
};

}  // namespace terrace
