#include "libtorch/hook/life/without_python.h"

#include <dlfcn.h>

namespace terrace {
namespace {

// Python's functions, as far as the process has them: neither the library nor
// its tests link Python.
struct Python {
  int (*has_lock)() = Find<int()>("PyGILState_Check");
  int (*is_initialized)() = Find<int()>("Py_IsInitialized");
  void* (*give_up)() = Find<void*()>("PyEval_SaveThread");
  void (*take_again)(void*) = Find<void(void*)>("PyEval_RestoreThread");

  template <typename Function>
  static Function* Find(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  bool is_there() const {
    return has_lock != nullptr && is_initialized != nullptr &&
           give_up != nullptr && take_again != nullptr;
  }
};

const Python& ThePython() {
  static const Python python;
  return python;
}

}  // namespace

WithoutPython::WithoutPython() {
  const Python& python = ThePython();
  if (!python.is_there() || python.is_initialized() == 0) return;
  if (python.has_lock() == 1) state_ = python.give_up();
}

WithoutPython::~WithoutPython() {
  if (state_ != nullptr) ThePython().take_again(state_);
}

}  // namespace terrace
