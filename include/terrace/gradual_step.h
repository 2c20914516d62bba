// Steps of an OffloadedOptimizer that go on between calls.
//
// GradualStep: the gradients come one after another, as a backward pass makes
// them.
//
//   auto step = optimizer->StartGradual(arguments, parameters, order);
//   (*step)->Supply(parameter, gradient, DType::kFloat32);  // as each comes
//   (*step)->Advance();
//   (*step)->TakeStepped(&parameters);  // whose gradients may be freed
//   absl::Status done = (*step)->Finish(deadline);
//
// A chunk is read ahead of its gradients, and updated as soon as all of its
// parameters have theirs; what is done is that of OffloadedOptimizer::Step with
// the same gradients, bit for bit. Chunks that wait for a gradient when no more
// come are updated with those that they have.
//
// A step that fails, or goes before it is finished, has updated some chunks
// with gradients that may be gone: the optimizer is of no more use and says so,
// and parameters and state are those of the last checkpoint.
//
// LateStep: updates go on after the step was begun, for a caller that waits for
// each parameter when it is next used.
//
//   auto step = optimizer->StartLate(arguments, parameters, order, deadline);
//   while (!(*step)->Advance()) (*step)->Wait(absl::InfiniteFuture());
//   absl::Status done = (*step)->result();
//
// When StartLate returns, the gradients have been read for their norm, and what
// could refuse the step or skip it is known. What is done is what
// OffloadedOptimizer::Step does, bit for bit. What fails leaves the step
// incomplete: StartLate goes on with it, of the same arguments and gradients,
// of which those of parameters that TakeStepped has named are not read any
// more; that they are the same is the caller's to know. Any other step is
// FailedPrecondition.
//
// Its parameters and gradients must stay where they are until TakeStepped has
// named the parameter or the step has ended well; until then a parameter that
// is read may be updated in part, and one that is written is updated or
// overwritten. No other method of the optimizer may be called before Advance
// has returned true.
//
// Thread-compatible, together with the optimizer, which must outlive them.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "terrace/tensor.h"

namespace terrace {

class GradualStep {
 public:
  virtual ~GradualStep() = default;

  // The whole gradient of a parameter, which stays where it is until
  // TakeStepped has named the parameter. Goes as far as it can without
  // blocking. InvalidArgument: another parameter than those that may come, one
  // that has come before, an address that is null or not aligned; the step
  // goes on without it. Else the step has failed, and why.
  virtual absl::Status Supply(int parameter, const void* gradient,
                              DType dtype) = 0;
  // No more come. Again: nothing.
  virtual absl::Status EndSupply() = 0;
  // As far as it goes without blocking. OK, or why the step has failed.
  virtual absl::Status Advance() = 0;
  // Appends the parameters that were stepped since the last call.
  virtual void TakeStepped(std::vector<int>* parameters) = 0;

  // Blocks until every chunk is updated, and ends the supply before it. OK: the
  // step counts. DeadlineExceeded: the step has failed.
  virtual absl::Status Finish(absl::Time deadline) = 0;
  // Ends the step as failed, for a reason of the caller's.
  virtual void GiveUp(absl::string_view why) = 0;
};

class LateStep {
 public:
  virtual ~LateStep() = default;

  // As far as it goes without blocking. True: it has ended.
  virtual bool Advance() = 0;
  // Blocks until Advance can go further, or until then. At the deadline that
  // StartLate was given the step ends as DeadlineExceeded, and is incomplete.
  virtual void Wait(absl::Time until) = 0;
  // Ends a Wait that waits for a tier, or else the next one that would; a Wait
  // for kernels or copies ends with the first of them. So whoever wants
  // something of the thread that drives the step says so first and calls Wake
  // afterwards, and that thread looks before each Wait. Any thread may call
  // Wake for as long as the step lives.
  virtual void Wake() = 0;
  // Once it has ended: OK, or why it is incomplete.
  virtual absl::Status result() const = 0;

  // Appends the parameters with a gradient that were stepped since the last
  // call, also by late attempts before this one.
  virtual void TakeStepped(std::vector<int>* parameters) = 0;
  // What of this parameter is not on its way yet goes first; and Advance
  // returns when all of it is stepped, before copies of others begin.
  virtual void Hasten(int parameter) = 0;
};

}  // namespace terrace
