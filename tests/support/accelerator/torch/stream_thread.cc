#include "tests/support/accelerator/torch/stream_thread.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <dlfcn.h>

namespace terrace {
namespace {

// LibTorch's own call sets the whole process's number; these set a thread's.
// They are of libraries that LibTorch has loaded.
template <typename Function>
void CallIfThere(const char* name) {
  if (auto* const function =
          reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name))) {
    function(1);
  }
}

}  // namespace

void RunStreamThread(const TaskQueues::Task& life) {
  // Makes this thread's settings from the process's, which would else be made
  // at the first kernel.
  at::get_num_threads();
  CallIfThere<void(int)>("omp_set_num_threads");
  CallIfThere<int(int)>("MKL_Set_Num_Threads_Local");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::DisableRecordFunctionGuard unseen;
  life();
}

}  // namespace terrace
