package main

const pauseImageRef = "registry.local/pause:1"
