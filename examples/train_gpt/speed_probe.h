// What the memory under a run can do, so that the update's rate can be given as
// a share. Takes under two seconds.
#pragma once

namespace train_gpt {

// Bytes a second of a triad (two streams read, one written) on so many
// threads: the best of a few passes.
double MeasureMemoryBytesPerSecond(int threads);

}  // namespace train_gpt
