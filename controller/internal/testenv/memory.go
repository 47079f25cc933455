package testenv

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// MemoryLimit is the memory limit of each controller in the chart, in bytes.
const MemoryLimit = 512 << 20

// PeakHeap returns the largest heap in bytes while do runs. As in the chart, Go collects garbage before the limit.
func PeakHeap(do func()) (peak uint64) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(MemoryLimit))
	ctx, stop := context.WithCancel(context.Background())
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		for ctx.Err() == nil {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	do()
	stop()
	<-sampled
	return peak
}
