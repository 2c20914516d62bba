// A model of LibTorch whose parameters, or activations, live below: each is in
// memory while an operation uses it, and otherwise where there is room. An
// Offload does what Python's terrace.offload does, in the same words, over a
// Runtime and a Hook of its own.
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
// does torch::optim's work on the parameters. Tensors that share memory go on
// sharing it; frozen parameters are never written back. Parameters that are
// made or replaced later, as by to() or torch::load(), are ordinary ones.
//
// An OffloadedAdamW or OffloadedAdam that is made with the Offload joins it:
// its state, and the gradients of its parameters, have the same memory and
// paths; see terrace/torch/optimizer.h. Beside other optimizers gradients and
// state stay in memory. Buffers always do.
//
// With `activations` the tensors that autograd saves in the model's forward
// live below too, until backward needs them. Forward runs in a scope of
// SaveActivations() then.
//
// Code that reads or writes bytes without an operation holds a Lease meanwhile.
// An operation throws when a fetch cannot bring its tensors. Both are as
// terrace/torch/hook.h has it.
//
// Thread-safe; operations on the parameters are as in hook.h. A forked child
// has none of its parent's parameters: there each use of one throws, each call
// that can fail returns Cancelled, and the object is destroyed without an
// effect.
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
#include "terrace/torch/placement.h"

namespace torch::nn {
class Module;
}

namespace terrace {

class OffloadPlace;

struct OffloadOptions {
  // The budget of memory for the parameters and for tensors on their way is in
  // bytes, or a share of the parameters' bytes (0.1 is a tenth). The minimum is
  // twice what the operations of the largest module take, and with activations
  // no less than that once and five tensors of activations_above_bytes; a share
  // is raised to the minimum. An optimizer that joins has its part of a budget
  // in bytes; a share grows, by that share of gradients and state. With neither
  // the budget holds all parameters, or a tenth of them with a path below.
  int64_t memory_budget_bytes = 0;
  double memory_budget_share = 0;
  // Directories, empty files or block devices for the rest, as Options::paths.
  std::vector<std::string> nvme_paths;
  // For a model on an accelerator of LibTorch's: so much of the device's memory
  // its parameters have at a time, in bytes or as a share of theirs. What is
  // said of memory above is below that then: a tenth of the parameters where
  // there is a path, else all. The device keeps its allocator for all else.
  int64_t hbm_budget_bytes = 0;
  double hbm_budget_share = 0;
  // These stand instead of all of the above: a device's memory, as
  // "hbm:cuda:0=20GiB", memory, as "dram=8GiB" (a tenth where memory is not
  // named), and the tiers below it; see ParseTier.
  std::vector<TierSpec> tiers;
  // The socket of a host's daemon in place of paths and tiers, as
  // "unix:/run/terrace/control.sock" (docs/daemon.md): it has the memory and
  // the disks, and the budget is asked of it; a tenth where none is said. The
  // job is the one whose quota it is, as Options::job.
  std::string daemon;
  std::string job;

  bool parameters = true;  // false: they stay in memory; needs activations
  // Tensors of activations_above_bytes and more that autograd saves in a scope
  // of SaveActivations() go below, which needs a path or tier there. A budget
  // in bytes holds them too; to a share, or a budget that holds all parameters,
  // 256 MiB are added for them.
  bool activations = false;
  int64_t activations_above_bytes = 1 << 20;

  // How long a fetch may take, room for it included.
  absl::Duration patience = absl::Minutes(5);
  // These are as in terrace/options.h.
  EngineKind engine = EngineKind::kAuto;
  int threads = 0;
  std::string machine_profile;
  bool unsafe_media = false;

  // The checkpoint of a model whose parameters are on the meta device
  // (terrace/torch/meta.h): a safetensors file, or a folder with an index of
  // several files or with model.safetensors. The values go from there straight
  // below, one by one, by reads and not by a mapping. Beside the budget, memory
  // never holds more than 4 MiB that are converted at a time, the files'
  // headers, and the model's buffers; buffers that the files have are in memory
  // once more until the end. The parameters stay the tensors that they are. A
  // file of torch::save is for torch::load() into a model in memory.
  std::string checkpoint;
  // Called after each storage, on Create's thread, with the bytes so far and
  // the bytes of all.
  std::function<void(int64_t done, int64_t total)> checkpoint_progress;
};

struct OffloadStats {
  int64_t parameter_bytes = 0;  // of all parameters, shared ones once
  int64_t minimum_bytes = 0;    // of a budget with a tier below
  int64_t budget_bytes = 0;
  int64_t joined_bytes = 0;  // of the budget, that joined optimizers added
  int64_t window_bytes = 0;  // of the budget, for operations at a time
  int64_t activation_budget_bytes = 0;  // of the budget, beside a share
  int64_t activation_limit_bytes = 0;   // of the largest one that goes below
  int64_t steps = 0;                    // that have begun
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
  // Returns InvalidArgument for an option that cannot be, for a budget that
  // cannot hold all parameters with nothing below for the rest, and for a
  // parameter that cannot be taken over, which the message names. Returns
  // Unimplemented for a tier that parameters cannot have, and for activations
  // of a model on a device, or where Python has loaded LibTorch, whose engine
  // asks hooks of Python alone what autograd saves. Returns ResourceExhausted
  // for bytes below the minimum, which the message names with what needs it, or
  // when there is no such memory; and FailedPrecondition when a parameter is
  // offloaded already. Other errors are those of Runtime::Create. After an
  // error the model is as it was, but for parameters that Hook::Manage names as
  // lost.
  //
  // A checkpoint has to have the names of named_parameters() and
  // named_buffers(); of several names of one tensor some may be missing. Values
  // are converted to the model's dtypes. Buffers that the files have come from
  // there and stay in memory; others keep the values that they have.
  // Returns InvalidArgument, with all names and before anything is made, for
  // parameters that have values already; for parameters, and buffers on the
  // meta device, that no file has; for tensors that the model has not; for
  // other shapes; for dtypes that are not to be converted (float to integer,
  // say); and for a file that is no safetensors file or index. NotFound and
  // DataLoss tell of a file that is not there, or was cut. Other errors of
  // files name path, offset and errno. An exception of checkpoint_progress
  // passes through; the model is as it was then, too.
  static absl::StatusOr<std::unique_ptr<Offload>> Create(
      ::torch::nn::Module& model, const OffloadOptions& options);

  // Closes with kRestore if Close did not, and tells an error of that in a
  // LibTorch warning. Tensors that are leased then stay usable, and so do
  // optimizers that joined; memory and files are leaked for them.
  virtual ~Offload() = default;

  // Makes a lease of a parameter, of a gradient that is below, or of a view of
  // one. Returns InvalidArgument for other tensors, FailedPrecondition when the
  // Offload is closed or a parameter's update failed, else the fetch's errors.
  virtual absl::StatusOr<Lease> MakeLease(const at::Tensor& tensor,
                                          Access access) = 0;

  // A hint: begins to fetch those tensors that are away, as far as there is
  // room, and waits for none of them.
  virtual void Prefetch(absl::Span<const at::Tensor> tensors) = 0;

  // Begins a scope around the model's forward, on the thread that runs it. Not
  // all tensors that autograd saves meanwhile go below: the parameters and
  // buffers that the model had at Create are left as they are, and so are
  // memory that LibTorch did not make, tensors larger than
  // stats().activation_limit_bytes, and the storages of `arguments`. These are
  // the arguments of the model, since whoever made them may have their
  // addresses or write to them. An operation throws c10::Error when a tensor
  // that it saves cannot go below, as when a fetch fails. Without
  // `activations`, after Close, and in a forked child the scope does nothing.
  virtual ActivationScope SaveActivations(
      absl::Span<const at::Tensor> arguments) = 0;
  ActivationScope SaveActivations() { return SaveActivations({}); }

  // Begins a scope of the calling thread in which new CPU tensors live below as
  // the parameters do: caches of keys and values, copies of a model's
  // parameters, another model. Hook::Place has the rules, and its errors are
  // this one's, and FailedPrecondition where the budget holds the parameters
  // and the state of their training: all is in memory then, and nothing below.
  virtual absl::StatusOr<PlacementScope> Placement() = 0;

  // Begins a training step, or another part of a program that repeats: all
  // passes whose gradients are summed and the optimizer's step, or one pass
  // where nothing is trained. From the second step on tensors are fetched ahead
  // of their next use, and the tensor whose next use is the last leaves first.
  // Without steps the tensor that was used longest ago leaves first.
  virtual void BeginStep() = 0;

  // Fetches that failed are tried again by the next use, as after a path was
  // repaired. Returns FailedPrecondition when the Offload is closed.
  virtual absl::Status Retry() = 0;

  // Blocks until no updates of joined optimizers go on, each as the optimizer's
  // Flush does; no other thread may use these optimizers meanwhile. Returns the
  // first error, which tells of the others, or DeadlineExceeded when the
  // deadline comes first: nothing is lost then, and the updates go on. After
  // Close it does nothing.
  virtual absl::Status Flush(absl::Time deadline) = 0;

  // Ends the Offload: finishes the updates of joined optimizers, brings
  // parameters and gradients into ordinary memory or leaves them away, closes
  // these optimizers, gives the memory back and removes the files. No operation
  // may use the parameters meanwhile, and no other thread such an optimizer.
  // Saved activations go where the parameters do. Further calls do nothing.
  // Returns FailedPrecondition, and changes nothing, when a parameter is leased
  // or in use, which the message names. Returns FailedPrecondition also when a
  // queue or pin of the Runtime is held: then the parameters are what they are
  // to be, and the rest is for the next Close. After other errors the Offload
  // is closed all the same. A parameter that could not be brought is refused,
  // and the first such error is returned. Updates that failed leave their
  // parameters as they were before the step; those whose failure was told
  // before are tried once more. A step without overlap that is incomplete is
  // an error too.
  virtual absl::Status Close(AtClose what) = 0;

  // Returns Hook::error(), after Close as well.
  virtual absl::Status error() const = 0;
  // Returns, after Close, the statistics of that time. They are empty in a
  // forked child.
  virtual OffloadStats stats() const = 0;

  // Returns the Runtime that the parameters live in, for customers that are to
  // share its memory and paths beside the window. It may not be called after
  // Close, nor in a forked child.
  virtual Runtime& runtime() = 0;

 private:
  friend class OffloadedAdamBase;
  // Returns the place, for an optimizer that joins, FailedPrecondition when the
  // Offload is closed, or Cancelled in a forked child.
  virtual absl::StatusOr<std::shared_ptr<OffloadPlace>> Place() = 0;
};

}  // namespace terrace
