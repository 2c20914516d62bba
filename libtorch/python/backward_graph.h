// What the graph that a backward pass goes through is made of.
#pragma once

#include <cstdint>

namespace terrace {

// Of the backward pass that this thread is in, whether nodes of it run Python,
// which may begin a backward pass within it: 0: none does; 1: some do; 2: one
// is of activation checkpointing (its name says so), which does. 0 outside of
// one.
int64_t PythonFunctionsInBackward();

}  // namespace terrace
